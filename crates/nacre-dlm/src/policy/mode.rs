//! Lock modes and their compatibility.

use nacre_types::codec_enum;

codec_enum! {
    /// Modes in the order of Lustre. Servers grant Pr, Pw and Ex today; the table has all modes because their numbers
    /// must never change.
    pub enum Mode: u8 {
        /// Compatible with every mode.
        Nl = 0,
        Cr = 1,
        Cw = 2,
        /// Shared read.
        Pr = 3,
        /// Write: excludes readers and writers.
        Pw = 4,
        Ex = 5,
        /// Shared by the holders of the same group id.
        Group = 6,
        Cos = 7,
        Txn = 8,
    }
}

/// A set of modes, a bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Modes(u16);
impl Modes {
    pub(crate) const NONE: Modes = Modes(0);
    pub(crate) const fn only(mode: Mode) -> Modes {
        Modes(1 << mode as u16)
    }
    pub(crate) const fn and(self, other: Modes) -> Modes {
        Modes(self.0 | other.0)
    }
    pub(crate) const fn meets(self, other: Modes) -> bool {
        self.0 & other.0 != 0
    }
}

/// Row: the granted mode. Column: the requested mode, Nl first.
const COMPATIBLE: [[u8; 9]; 9] = [
    [1, 1, 1, 1, 1, 1, 1, 1, 1], // Nl
    [1, 1, 1, 1, 1, 0, 0, 0, 1], // Cr
    [1, 1, 1, 0, 0, 0, 0, 0, 0], // Cw
    [1, 1, 0, 1, 0, 0, 0, 0, 1], // Pr
    [1, 1, 0, 0, 0, 0, 0, 0, 0], // Pw
    [1, 0, 0, 0, 0, 0, 0, 0, 0], // Ex
    [1, 0, 0, 0, 0, 0, 1, 0, 0], // Group (of one group id)
    [1, 0, 0, 0, 0, 0, 0, 1, 0], // Cos
    [1, 1, 0, 1, 0, 0, 0, 0, 1], // Txn
];

const fn symmetric() -> bool {
    let mut i = 0;
    while i < 9 {
        let mut j = 0;
        while j < 9 {
            if COMPATIBLE[i][j] != COMPATIBLE[j][i] {
                return false;
            }
            j += 1;
        }
        i += 1;
    }
    true
}
const _: () = assert!(symmetric());

impl Mode {
    /// Whether two locks of these modes may be held at once by different holders.
    pub const fn is_compatible(self, other: Mode) -> bool {
        COMPATIBLE[self as usize][other as usize] == 1
    }
    /// Every mode that is incompatible with this one.
    pub(crate) const fn conflicts(self) -> Modes {
        let row = COMPATIBLE[self as usize];
        let mut bits = 0;
        let mut i = 0;
        while i < row.len() {
            if row[i] == 0 {
                bits |= 1 << i;
            }
            i += 1;
        }
        Modes(bits)
    }
    /// Whether this mode permits everything that `needed` permits.
    pub const fn covers(self, needed: Mode) -> bool {
        match needed {
            Mode::Nl => true,
            Mode::Cr | Mode::Pr => matches!(self, Mode::Pr | Mode::Pw | Mode::Ex),
            Mode::Cw | Mode::Pw => matches!(self, Mode::Pw | Mode::Ex),
            Mode::Ex => matches!(self, Mode::Ex),
            Mode::Group | Mode::Cos | Mode::Txn => self as u8 == needed as u8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_share_writers_do_not() {
        assert!(Mode::Pr.is_compatible(Mode::Pr));
        for other in [Mode::Pr, Mode::Pw, Mode::Ex] {
            assert!(!Mode::Pw.is_compatible(other));
            assert!(!Mode::Ex.is_compatible(other));
        }
        assert!(Mode::Pw.is_compatible(Mode::Cr) && !Mode::Ex.is_compatible(Mode::Cr));
    }

    #[test]
    fn the_set_of_conflicts_says_what_the_table_says() {
        for &a in Mode::ALL {
            for &b in Mode::ALL {
                assert_eq!(a.conflicts().meets(Modes::only(b)), !a.is_compatible(b), "{a:?} {b:?}");
            }
        }
    }
}
