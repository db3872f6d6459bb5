//! The state of a scrub of one OST: the value of its parameter `scrub` (`nacre-ost/src/scrub.rs`), parsed.

use super::{Pass, Place};

impl Pass {
    /// Lines that are unknown, or not as expected, are left out: the OST may be of another version.
    pub(super) fn parse(text: &str) -> Self {
        let mut pass = Self::default();
        for line in text.lines() {
            let Some((key, value)) = line.split_once(": ") else { continue };
            let (first, total) = value.split_once(" of ").unwrap_or((value, "0"));
            let number = |text: &str| text.parse().unwrap_or(0);
            match key {
                "state" => pass.state = value.to_owned(),
                "started" => pass.started = number(first),
                "ended" => pass.ended = number(first),
                "objects" => (pass.objects, pass.objects_total) = (number(first), number(total)),
                "bytes" => (pass.bytes, pass.bytes_total) = (number(first), number(total)),
                "verified_bytes" => pass.verified_bytes = number(first),
                "unverified_regions" => pass.unverified_regions = number(first),
                "damaged_places" => pass.damaged_places = number(first),
                "damaged_bytes" => pass.damaged_bytes = number(first),
                "damage" => pass.damage.extend(Place::parse(value)),
                _ => {}
            }
        }
        pass
    }
    pub(super) fn is_running(&self) -> bool {
        self.state == "running"
    }
}

impl Place {
    /// `[0x101:0x3:0x0] stripe 0 bytes 4096 8192 checksum`.
    fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let [fid, "stripe", stripe, "bytes", from, to, kind] = words[..] else { return None };
        let (stripe, from, to) = (stripe.parse().ok()?, from.parse().ok()?, to.parse().ok()?);
        Some(Self { fid: fid.to_owned(), stripe, from, to, kind: kind.to_owned() })
    }
    /// In words, without the name of the file.
    pub(super) fn sentence(&self) -> String {
        let Self { stripe, from, to, kind, .. } = self;
        match kind.as_str() {
            "checksum" => {
                format!(
                    "bytes {from} to {to} of stripe {stripe} are not those that were written (their checksum does not match)"
                )
            }
            "lost" => format!(
                "bytes {from} to {to} of stripe {stripe} are lost: the object's file does not have them"
            ),
            "unreadable" => {
                format!("bytes {from} to {to} of stripe {stripe} cannot be read: the device returns an error")
            }
            "quarantined" => format!("stripe {stripe} is quarantined: the device refused bytes of it"),
            "rows" => format!("stripe {stripe} cannot be read: the rows that describe it are damaged"),
            other => format!("bytes {from} to {to} of stripe {stripe}: {other}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_of_the_parameter_is_read_and_what_is_not_known_is_left_out() {
        let text = "state: running\nstarted: 17\nobjects: 3 of 5\nbytes: 8192 of 16384\nverified_bytes: 8192\n\
                    unverified_regions: 1\ndamaged_places: 2\ndamaged_bytes: 12\nnews: 5\n\
                    damage: [0x101:0x3:0x0] stripe 1 bytes 4096 4108 checksum\ndamage: something else\n";
        let pass = Pass::parse(text);
        assert!(pass.is_running());
        assert_eq!((pass.started, pass.ended, pass.objects, pass.objects_total), (17, 0, 3, 5));
        assert_eq!((pass.bytes, pass.bytes_total, pass.verified_bytes), (8192, 16_384, 8192));
        assert_eq!((pass.unverified_regions, pass.damaged_places, pass.damaged_bytes), (1, 2, 12));
        let place =
            Place { fid: "[0x101:0x3:0x0]".into(), stripe: 1, from: 4096, to: 4108, kind: "checksum".into() };
        assert_eq!(pass.damage, [place]);
        assert!(pass.damage[0].sentence().starts_with("bytes 4096 to 4108 of stripe 1 "));
        assert_eq!(Pass::parse("state: none\n"), Pass { state: "none".into(), ..Pass::default() });
        crate::replay::replay("text", |bytes| drop(Pass::parse(&String::from_utf8_lossy(bytes))));
    }
}
