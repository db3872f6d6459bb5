//! Patterns of parameter names: `mdc.*.max_mod_rpcs_in_flight`, `mdt.**`.

/// Whether a parameter's name matches: part by part between dots, `*` for any characters of one part, `**` as the last
/// part for one or more parts.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (mut patterns, mut parts) = (pattern.split('.'), name.split('.'));
    loop {
        match (patterns.next(), parts.next()) {
            (None, None) => return true,
            (Some("**"), Some(_)) if patterns.clone().next().is_none() => return true,
            (Some(pattern), Some(part)) if part_matches(pattern.as_bytes(), part.as_bytes()) => {}
            _ => return false,
        }
    }
}

/// Linear: on a mismatch only the last star can take one more byte.
fn part_matches(pattern: &[u8], part: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < part.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(b) if Some(b) == part.get(n) => {
                p += 1;
                n += 1;
            }
            _ => match &mut star {
                Some((at, taken)) => {
                    *taken += 1;
                    (p, n) = (*at + 1, *taken);
                }
                None => return false,
            },
        }
    }
    pattern.get(p..).is_some_and(|rest| rest.iter().all(|b| *b == b'*'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stays_within_its_part() {
        for (pattern, name, fits) in [
            ("mdt.*.uuid", "mdt.demo-MDT0000.uuid", true),
            ("mdt.demo-*.num*", "mdt.demo-MDT0000.num_exports", true),
            ("mdt.*", "mdt.demo-MDT0000.uuid", false),
            ("*.*.*", "mdt.demo-MDT0000.uuid", true),
            ("m*t.a*b*c.x", "mdt.aXbYbZc.x", true),
            ("m*t.a*b*c.x", "mdt.aXbYbZ.x", false),
            ("mdt.**", "mdt.demo-MDT0000.uuid", true),
            ("mdt.*.exports.**", "mdt.demo-MDT0000.exports.a.stats", true),
            ("mdt.*.exports.**", "mdt.demo-MDT0000.exports", false),
            ("**", "mdt.demo-MDT0000.uuid", true),
            ("**.uuid", "mdt.demo-MDT0000.uuid", false),
            ("", "mdt", false),
            ("mdt", "mdt", true),
        ] {
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
    }
}
