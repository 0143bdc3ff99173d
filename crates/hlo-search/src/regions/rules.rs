//! By which rules regions may be computed in other ways.

/// Whether regions of products may be computed in other ways.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Regions {
    /// No.
    AsTheyAre,
    /// By all rules, which are closed under differentiation.
    ByAllRules,
    /// By the rules that were enumerated, without their backward forms: an ablation.
    ByForwardRules,
}

impl Regions {
    /// What a word of an option means.
    pub fn of_word(word: &str) -> Regions {
        match word {
            "true" => Regions::ByAllRules,
            "forward" => Regions::ByForwardRules,
            _ => Regions::AsTheyAre,
        }
    }
}
