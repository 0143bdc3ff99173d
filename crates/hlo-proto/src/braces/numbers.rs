//! `result_accuracy={mode=highest}`, `statistics={visualizing_index=1,a=33}`, `sparsity_config={lhs={sparsity=1x2 …}}`.

use super::cursor::Cursor;
use crate::read::Fallible;
use crate::table::{
    ACCURACY_MODE, result_accuracy, result_accuracy_tolerance, sparsity_config, statistic, statistics_viz,
    tensor_sparsity_config,
};
use crate::view::View;
use crate::writer::Writer;
use std::fmt::Write;

/// Appends a number as C's `%g` does, but with as many digits as it takes to read the same number back.
fn write_double(value: f64, out: &mut String) {
    let text = format!("{value:e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let n_digits = mantissa.bytes().filter(u8::is_ascii_digit).count() as i32;
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let outcome = if !value.is_finite() || (-4..n_digits.max(6)).contains(&exponent) {
        write!(out, "{value}")
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        write!(out, "{mantissa}e{sign}{:02}", exponent.abs())
    };
    debug_assert!(outcome.is_ok(), "strings take all text");
}

/// `{mode=highest}` or `{tolerance={…}}`; nothing for the default mode.
pub(super) fn read_accuracy(view: &View<'_>) -> Fallible<String> {
    use result_accuracy_tolerance as t;
    let Some(tolerance) = view.message(result_accuracy::tolerance) else {
        return match view.int(result_accuracy::mode) {
            0 => Ok(String::new()),
            number => {
                let mode = ACCURACY_MODE.word(number);
                let mode = mode.ok_or_else(|| format!("expected a mode of result accuracy, found number {number}"))?;
                Ok(format!("{{mode={mode}}}"))
            }
        };
    };
    let mut out = String::from("{tolerance={atol=");
    write_double(tolerance.double(t::atol), &mut out);
    out.push_str(",rtol=");
    write_double(tolerance.double(t::rtol), &mut out);
    out.push_str(&format!(",ulps={}}}}}", tolerance.int(t::ulps)));
    Ok(out)
}

/// Appends the fields that `{mode=…}` or `{tolerance={…}}` says.
pub(super) fn write_accuracy(w: &mut Writer, text: &str) -> Option<()> {
    use result_accuracy_tolerance as t;
    let mut cur = Cursor::new(text);
    cur.expect("{")?;
    if cur.eat("mode=") {
        w.int_or_zero(result_accuracy::mode, ACCURACY_MODE.number_of_word(cur.until(&['}', ','])?)?);
        return Some(());
    }
    cur.expect("tolerance=")?;
    cur.expect("{")?;
    let (mut atol, mut rtol, mut ulps) = (0.0, 0.0, 0);
    while !cur.eat("}") {
        let key = cur.until(&['='])?;
        cur.expect("=")?;
        let value = cur.until(&[',', '}'])?;
        match key {
            "atol" => atol = value.parse().ok()?,
            "rtol" => rtol = value.parse().ok()?,
            "ulps" => ulps = value.parse().ok()?,
            _ => return None,
        }
        cur.eat(",");
    }
    w.message(result_accuracy::tolerance, |w| {
        w.double(t::atol, atol);
        w.double(t::rtol, rtol);
        w.int(t::ulps, ulps);
    });
    Some(())
}

/// Which of the statistics is to be shown, in the text.
const VISUALIZING_INDEX: &str = "visualizing_index";

/// A statistic's name as the text can say it: what would end it, and the name of another field, becomes another one.
fn sayable(name: &str) -> String {
    let ends = |c: char| matches!(c, '=' | ',' | '{' | '}' | '"' | '\'') || c.is_whitespace() || c.is_control();
    let name = name.replace(ends, "_");
    if name == VISUALIZING_INDEX { format!("{name}_") } else { name }
}

/// `{visualizing_index=1,a=33}`; nothing where there is no statistic. Characters of names that the text cannot say become `_`.
pub(super) fn read_statistics(view: &View<'_>) -> String {
    let mut out = format!("{{{VISUALIZING_INDEX}={}", view.int(statistics_viz::stat_index_to_visualize));
    let before = out.len();
    for entry in view.messages(statistics_viz::statistics) {
        out.push(',');
        out.push_str(&sayable(&entry.text(statistic::stat_name)));
        out.push('=');
        write_double(entry.double(statistic::stat_val), &mut out);
    }
    if out.len() == before {
        return String::new();
    }
    out.push('}');
    out
}

/// Appends the fields that `{visualizing_index=1,a=33}` says.
pub(super) fn write_statistics(w: &mut Writer, text: &str) -> Option<()> {
    let mut cur = Cursor::new(text);
    cur.expect("{")?;
    let mut entries = Vec::new();
    let mut index = None;
    while !cur.eat("}") {
        let key = cur.until(&['='])?;
        cur.expect("=")?;
        let value = cur.until(&[',', '}'])?;
        match key {
            VISUALIZING_INDEX => index = Some(value.parse().ok()?),
            name => entries.push((name, value.parse::<f64>().ok()?)),
        }
        cur.eat(",");
    }
    // XLA drops statistics that do not say which of them to show.
    w.int(statistics_viz::stat_index_to_visualize, index?);
    for (name, value) in entries {
        w.message(statistics_viz::statistics, |w| {
            w.text(statistic::stat_name, name);
            w.double(statistic::stat_val, value);
        });
    }
    Some(())
}

/// `{lhs={sparsity=1x2 dimension=1 stride=2} rhs={…}}`.
pub(super) fn read_sparsity(view: &View<'_>) -> String {
    use tensor_sparsity_config as t;
    let side = |(key, field)| {
        let side = view.message(field)?;
        let (n, block) = (side.int(t::num_non_zero), side.int(t::block_size));
        let (dimension, stride, idx) = (side.int(t::dimension), side.int(t::stride), side.int(t::idx));
        let idx = if idx == 0 { String::new() } else { format!(" idx={idx}") };
        Some(format!("{key}={{sparsity={n}x{block} dimension={dimension} stride={stride}{idx}}}"))
    };
    let sides: Vec<String> =
        [("lhs", sparsity_config::lhs), ("rhs", sparsity_config::rhs)].into_iter().filter_map(side).collect();
    if sides.is_empty() { String::new() } else { format!("{{{}}}", sides.join(" ")) }
}

/// Appends the fields that such a text says.
pub(super) fn write_sparsity(w: &mut Writer, text: &str) -> Option<()> {
    use tensor_sparsity_config as t;
    let mut cur = Cursor::new(text);
    cur.expect("{")?;
    while !cur.eat("}") {
        let field = if cur.eat("lhs=") { sparsity_config::lhs } else { sparsity_config::rhs };
        if field.number == sparsity_config::rhs.number {
            cur.expect("rhs=")?;
        }
        cur.expect("{")?;
        let mut side = Writer::default();
        while !cur.eat("}") {
            if cur.eat("sparsity=") {
                side.int(t::num_non_zero, cur.int()?);
                cur.expect("x")?;
                side.int(t::block_size, cur.int()?);
            } else {
                let key = cur.until(&['='])?;
                cur.expect("=")?;
                let field = [t::dimension, t::stride, t::idx].into_iter().find(|field| field.name() == key)?;
                side.int(field, cur.int()?);
            }
            cur.eat(",");
        }
        w.bytes_or_none(field, &side.out);
        cur.eat(",");
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn double(value: f64) -> String {
        let mut out = String::new();
        write_double(value, &mut out);
        out
    }

    #[test]
    fn numbers_look_as_in_xla() {
        assert_eq!([1e-7, 33.0, 44.5, 1e30, 0.0].map(double), ["1e-07", "33", "44.5", "1e+30", "0"]);
    }

    #[test]
    fn texts_come_back() {
        let written = |write: fn(&mut Writer, &str) -> Option<()>, text: &str| {
            let mut w = Writer::default();
            write(&mut w, text).unwrap();
            w.out
        };
        for text in ["{mode=highest}", "{tolerance={atol=1e-07,rtol=0.5,ulps=2}}"] {
            assert_eq!(read_accuracy(&View::of(&written(write_accuracy, text))).unwrap(), text);
        }
        let text = "{visualizing_index=1,stat-1=33,stat-2=44.5}";
        assert_eq!(read_statistics(&View::of(&written(write_statistics, text))), text);
        // A name that no text can say.
        let mut w = Writer::default();
        w.message(statistics_viz::statistics, |w| {
            w.text(statistic::stat_name, "a}=\"b,");
            w.double(statistic::stat_val, 1.5);
        });
        let text = read_statistics(&View::of(&w.out));
        assert_eq!(text, "{visualizing_index=0,a___b_=1.5}");
        assert_eq!(read_statistics(&View::of(&written(write_statistics, &text))), text);
        let text = "{lhs={sparsity=1x2 dimension=1 stride=2}}";
        assert_eq!(read_sparsity(&View::of(&written(write_sparsity, text))), text);
    }
}
