//! What `nacre up` prints when the file system is mounted.

use super::FileSystem;
use crate::output;
use crate::process;
use crate::process::data_dir::DataDir;
use crate::process::detach::Talk;
use crate::process::islands::Process;
use crate::process::mounted::Mounted;
use nacre_types::TargetName;
use std::path::Path;
use std::time::Duration;

pub(super) fn show(
    talk: &Talk,
    process: &Process,
    mounted: &Mounted,
    fs: &FileSystem,
    listens: Option<&str>,
    log: &Path,
) {
    let name = &fs.name;
    let capacity = capacity(mounted);
    let names: Vec<_> = process.node().islands().iter().map(|i| i.name().to_owned()).collect();
    let targets: Vec<_> =
        names.iter().filter(|n| TargetName::parse(n).is_some()).map(String::as_str).collect();
    let data = fs
        .data
        .as_ref()
        .map_or_else(|| "in memory: lost when it stops".into(), |d| d.path().display().to_string());
    let down = if talk.is_detached() { "nacre down" } else { "Ctrl-C (or nacre down)" };
    // A disk that is not mounted would otherwise be noticed by the missing files only.
    let new = if fs.data.as_ref().is_some_and(DataDir::is_new) { "new " } else { "" };
    talk.line(&format!("\n{new}file system {name} is mounted on {}", mounted.dir().display()));
    talk.line(&format!("  capacity       {capacity}"));
    const SHOWN_MAX: usize = 8;
    let targets = match targets.as_slice() {
        [first, .., last] if targets.len() > SHOWN_MAX => format!("{} from {first} to {last}", targets.len()),
        all => all.join(", "),
    };
    talk.line(&format!("  targets        {targets}"));
    talk.line(&format!("  data           {data}"));
    talk.line(&format!("  log            {}", log.display()));
    let another = for_shell(&format!("{}:/{name}", mounted.address()));
    talk.line(&format!("  mount another: nacre mount {another} DIR"));
    if let Some(address) = listens {
        talk.line(&format!("  other hosts:   nacre mount {}:/{name} DIR", for_other_hosts(address)));
    }
    if let Some(hint) = mounted.hint() {
        talk.line(&format!("  {hint}"));
    }
    talk.line("  no authentication yet: everyone who can reach a server can read and write everything");
    talk.line(&format!(
        "next: copy something to {}, nacre status, nacre lfs df -h; stop: {down}",
        mounted.dir().display()
    ));
}

/// What statfs(2) says. The mount is there a moment before it has found the object targets.
fn capacity(mounted: &Mounted) -> String {
    let mut looks = (0..40).map(|n| {
        process::pause(Duration::from_millis(if n == 0 { 0 } else { 50 }));
        rustix::fs::statvfs(mounted.dir()).ok()
    });
    let space = looks.find(|space| space.as_ref().is_none_or(|s| s.f_blocks > 0)).flatten();
    space.map_or_else(
        || "unknown".into(),
        |s| {
            let unit = s.f_frsize;
            format!(
                "{} available of {}",
                output::human_bytes(s.f_bavail * unit),
                output::human_bytes(s.f_blocks * unit)
            )
        },
    )
}

/// An address that listens on all of this host's addresses has no name of the host.
fn for_other_hosts(address: &str) -> String {
    let port = ["0.0.0.0:", "[::]:"].iter().find_map(|any| address.strip_prefix(any));
    port.map_or_else(|| address.to_owned(), |port| format!("HOST:{port}"))
}

/// A word that can be copied into a shell, although a path in it may have a space.
fn for_shell(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-:@%+=,".contains(c);
    match word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::for_shell;

    #[test]
    fn words_with_spaces_are_quoted() {
        assert_eq!(for_shell("unix:/a-b/nacre.sock:/fs"), "unix:/a-b/nacre.sock:/fs");
        assert_eq!(for_shell("unix:/my mnt/it's:/fs"), r"'unix:/my mnt/it'\''s:/fs'");
    }
}
