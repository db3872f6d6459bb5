//! The words after `-o`, and their meaning for the kernel's mount and for the mount's island.

use anyhow::{Result, bail};
use nacre_client::{Atime, AtimePolicy};
use nacre_fuse::{Interrupts, KernelAtime, KernelOptions};

/// All words, for help and hints.
pub(crate) const WORDS: &str = "ro, rw, suid, nosuid, dev, nodev, exec, noexec, relatime, noatime, strictatime, atime, nodiratime, \
     diratime, lazytime, nolazytime, intr, nointr, uring, nouring, write_back, write_through";

/// The word for a mount that exists (`nacre mount` only).
const REMOUNT: &str = "remount";

/// Words that mount(8) takes over from the table of mounts into a remount; they do not change.
const FROM_TABLE: &[&str] =
    &["fd", "rootmode", "user_id", "group_id", "default_permissions", "allow_other", "max_read", "bind"];

/// Whether requests come through io_uring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Uring {
    /// They do if the kernel offers it.
    #[default]
    IfOffered,
    /// They do; io_uring is turned on first if it is off.
    TurnedOn,
    Never,
}

/// Options of one mount; a later word overrides an earlier one. A plain record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Options {
    pub(crate) read_only: bool,
    pub(crate) no_suid: bool,
    pub(crate) no_dev: bool,
    pub(crate) no_exec: bool,
    pub(crate) uring: Uring,
    pub(crate) interrupts: Interrupts,
    /// Whether writes may be kept for a moment; `None`: the command decides.
    write_back: Option<bool>,
    atime: Atime,
    no_dir_atime: bool,
    lazy_time: bool,
}

impl Options {
    /// # Errors
    /// A sentence that names the word that is not known.
    pub(crate) fn parse(list: &[String]) -> Result<Self> {
        let mut options = Self::default();
        for word in list {
            match word.as_str() {
                "ro" => options.read_only = true,
                "rw" => options.read_only = false,
                "nosuid" => options.no_suid = true,
                "suid" => options.no_suid = false,
                "nodev" => options.no_dev = true,
                "dev" => options.no_dev = false,
                "noexec" => options.no_exec = true,
                "exec" => options.no_exec = false,
                "nouring" => options.uring = Uring::Never,
                "uring" => options.uring = Uring::IfOffered,
                "intr" => options.interrupts = Interrupts::Handled,
                "nointr" => options.interrupts = Interrupts::Fatal,
                "write_through" => options.write_back = Some(false),
                "write_back" => options.write_back = Some(true),
                "noatime" => options.atime = Atime::Never,
                "relatime" | "atime" => options.atime = Atime::Relative,
                "strictatime" => options.atime = Atime::Always,
                "nodiratime" => options.no_dir_atime = true,
                "diratime" => options.no_dir_atime = false,
                // Access times are lazy anyway: this is what the table of mounts shows.
                "lazytime" => options.lazy_time = true,
                "nolazytime" => options.lazy_time = false,
                REMOUNT => {
                    bail!("the option remount is for a mount that exists\nhint: nacre mount -o remount,...")
                }
                other => bail!("unknown mount option {other:?}\nhint: {WORDS}"),
            }
        }
        Ok(options)
    }
    /// The options of a mount that exists, as the table of mounts shows them (`rw,noatime`), changed by `words`.
    ///
    /// # Errors
    /// As [`Options::parse`].
    pub(crate) fn parse_table(shown: &str, words: &[String]) -> Result<Self> {
        let is_from_table = |word: &str| FROM_TABLE.contains(&word.split('=').next().unwrap_or_default());
        // The table has no word for it.
        let is_strict = !shown.split(',').any(|word| word == "relatime" || word == "noatime");
        let strict = is_strict.then_some("strictatime");
        let all = strict.into_iter().chain(shown.split(',')).chain(words.iter().map(String::as_str));
        Self::parse(&all.filter(|word| !is_from_table(word)).map(str::to_owned).collect::<Vec<_>>())
    }
    /// Whether writes may be kept for a moment, if the command would choose `default`.
    pub(crate) fn write_back(&self, default: bool) -> bool {
        self.write_back.unwrap_or(default)
    }
    pub(crate) fn atime(&self) -> AtimePolicy {
        let directories = if self.no_dir_atime { Atime::Never } else { self.atime };
        AtimePolicy { files: self.atime, directories }
    }
    /// The kernel's part. It leaves access times to a FUSE file system, and shows them in the table of mounts.
    pub(crate) fn kernel(&self) -> KernelOptions {
        KernelOptions {
            read_only: self.read_only,
            no_suid: self.no_suid,
            no_dev: self.no_dev,
            no_exec: self.no_exec,
            atime: KernelAtime {
                never: self.atime == Atime::Never,
                always: self.atime == Atime::Always,
                no_directories: self.no_dir_atime,
                lazy: self.lazy_time,
            },
        }
    }
}

/// The options of a mount, for every command that mounts.
#[derive(clap::Args, Debug)]
pub(crate) struct OptionArgs {
    /// Mount options, separated by commas
    #[arg(short, long = "option", value_delimiter = ',', value_name = "OPTION", long_help = option_help())]
    options: Vec<String>,
    /// Turn io_uring on for FUSE if it is off (for later mounts of this machine, too; needs root)
    #[arg(long)]
    io_uring: bool,
}
impl OptionArgs {
    /// The words for a mount that exists, if `remount` is one of them.
    pub(crate) fn remount(&self) -> Option<Vec<String>> {
        let others = self.options.iter().filter(|word| *word != REMOUNT).cloned().collect::<Vec<_>>();
        (others.len() < self.options.len()).then_some(others)
    }
    /// `no_uring`: a further option of the command.
    pub(crate) fn parse(&self, no_uring: bool) -> Result<Options> {
        let mut options = Options::parse(&self.options)?;
        if no_uring {
            options.uring = Uring::Never;
        }
        if self.io_uring {
            if options.uring == Uring::Never {
                bail!("--io-uring and the options against it (--no-uring, -o nouring) exclude each other");
            }
            options.uring = Uring::TurnedOn;
        }
        Ok(options)
    }
}
fn option_help() -> String {
    format!(
        "Mount options, separated by commas: {}.\n\
         Access times: relatime is the default. intr: the signals INT, QUIT, ALRM and TERM also interrupt (EINTR) a call that \
         changes nothing and has waited for a server for two seconds; without this option, only a signal that ends the \
         process does. nouring: requests through /dev/fuse only. write_through: each write is sent to a server before its call \
         returns, instead of up to half a second later. `nacre mount` also takes remount: the other words change the \
         existing mount (all but intr, uring, write_through and their opposites).",
        WORDS
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Options> {
        Options::parse(&text.split(',').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn every_word_of_the_hint_is_known_and_the_last_word_counts() {
        for word in WORDS.split(", ") {
            parsed(word).unwrap();
        }
        assert_eq!(parsed("ro,nosuid,nodev,noexec,nouring,intr,noatime,nodiratime,lazytime,rw,suid,dev,exec,uring,nointr,relatime,diratime,nolazytime").unwrap(), Options::default());
        assert_eq!(parsed("write_back,write_through").unwrap().write_back, Some(false));
        let policy = parsed("strictatime,nodiratime").unwrap().atime();
        assert_eq!(policy, AtimePolicy { files: Atime::Always, directories: Atime::Never });
        assert_eq!(parsed("noatime").unwrap().atime().directories, Atime::Never);
        let remounted = |shown| Options::parse_table(shown, &["ro".to_owned()]).unwrap().atime().files;
        let of_tables = ["rw", "rw,relatime", "rw,nosuid,noatime"].map(remounted);
        assert_eq!(of_tables, [Atime::Always, Atime::Relative, Atime::Never], "a remount keeps them");
        let error = parsed("ro,sync").unwrap_err().to_string();
        assert!(error.contains("\"sync\"") && error.contains("hint: ro, rw"), "{error}");
    }
}
