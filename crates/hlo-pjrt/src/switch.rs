//! Words for on and off, as every variable of the environment takes them.

const ON: [&str; 4] = ["on", "1", "true", "yes"];
const OFF: [&str; 4] = ["off", "0", "false", "no"];

/// Whether a text switches something on: `on`, `1`, `true` and `yes` do, `off`, `0`, `false` and `no` do not, in any case and with
/// spaces around them.
///
/// # Errors
/// Another text: what was expected and found.
pub fn read_switch(text: &str) -> Result<bool, String> {
    let word = text.trim().to_lowercase();
    if ON.contains(&word.as_str()) {
        Ok(true)
    } else if OFF.contains(&word.as_str()) {
        Ok(false)
    } else {
        Err(format!("expected {} (on), or {} (off), found `{}`", ON.join(", "), OFF.join(", "), text.trim()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_any_case_are_read_and_others_are_refused() {
        for (text, is_on) in [("on", true), (" Yes ", true), ("TRUE", true), ("1", true), ("No", false), ("oFF", false)]
        {
            assert_eq!(read_switch(text), Ok(is_on), "{text}");
        }
        assert!(OFF.iter().all(|word| read_switch(word) == Ok(false)));
        let expected = "expected on, 1, true, yes (on), or off, 0, false, no (off), found `of`";
        assert_eq!(read_switch("of"), Err(expected.to_string()));
        assert!(read_switch("").is_err() && read_switch("10").is_err());
    }
}
