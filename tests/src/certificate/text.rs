//! The text of a certificate, read by its own reader.

/// A value that an equation speaks of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SiteText {
    pub module: usize,
    pub path: String,
    pub inst: String,
    pub leaf: usize,
}

/// See `hlo_prove::Cut`.
#[derive(Clone, Debug)]
pub(super) struct CutText {
    pub site: usize,
    pub device: Option<u32>,
    pub source: usize,
    pub source_device: Option<u32>,
    pub at: [i64; 2],
    pub dims: Vec<(i64, [i64; 2])>,
}

#[derive(Default)]
pub(super) struct CertificateText {
    pub sites: Vec<SiteText>,
    pub equal: Vec<(usize, Vec<u32>)>,
    pub cuts: Vec<CutText>,
    pub outputs: Vec<usize>,
}

/// Reads a certificate.
///
/// # Errors
/// The first line that is none, with its number.
pub(super) fn parse(text: &str) -> Result<CertificateText, String> {
    let mut lines = text.lines().enumerate();
    match lines.next() {
        Some((_, "hlo-prove certificate 1")) => {}
        other => return Err(format!("line 1: expected hlo-prove certificate 1, found {:?}", other.map(|l| l.1))),
    }
    let mut out = CertificateText::default();
    for (number, line) in lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        parse_line(&words, &mut out)
            .ok_or_else(|| format!("line {}: expected a site, equal, cut or output, found {line}", number + 1))?;
    }
    Ok(out)
}

fn parse_line(words: &[&str], out: &mut CertificateText) -> Option<()> {
    match words {
        ["site", number, module, path, inst, leaf] if *number == out.sites.len().to_string() => {
            let path = if *path == "-" { String::new() } else { (*path).to_string() };
            let (module, leaf) = (module.parse().ok()?, leaf.parse().ok()?);
            out.sites.push(SiteText { module, path, inst: (*inst).to_string(), leaf });
        }
        ["equal", site, reps @ ..] => {
            let reps = reps.iter().map(|rep| rep.parse().ok()).collect::<Option<_>>()?;
            out.equal.push((known(site, out)?, reps));
        }
        ["cut", site, device, at, "=", source, source_device, source_at, dims @ ..] => {
            let dim = |text: &&str| {
                let mut numbers = text.split(':').map(|n| n.parse::<i64>().ok());
                Some((numbers.next()??, [numbers.next()??, numbers.next()??]))
            };
            out.cuts.push(CutText {
                site: known(site, out)?,
                device: device_of(device)?,
                source: known(source, out)?,
                source_device: device_of(source_device)?,
                at: [at.parse().ok()?, source_at.parse().ok()?],
                dims: dims.iter().map(dim).collect::<Option<_>>()?,
            });
        }
        ["output", leaf] => out.outputs.push(leaf.parse().ok()?),
        _ => return None,
    }
    Some(())
}

fn known(site: &str, out: &CertificateText) -> Option<usize> {
    site.parse().ok().filter(|&site| site < out.sites.len())
}

fn device_of(text: &str) -> Option<Option<u32>> {
    if text == "*" { Some(None) } else { text.parse().ok().map(Some) }
}
