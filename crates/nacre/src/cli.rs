//! The command line: one definition per command and flag, from which parser and help are made.

use crate::cmd::{
    bench, check, destroy, down, lctl, lfs, lr_reader, manual, mkfs, mount, scrub, serve, status, target, up,
};
use crate::process::guard;
use anyhow::Result;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser, Debug)]
#[command(
    name = "nacre",
    version,
    about = "A parallel file system in user space",
    long_about = "A parallel file system in user space: management, metadata and object servers and the client in one \
                  binary, no kernel module.\n\nStart here:  nacre up /mnt/nacre",
    after_help = "Exit status: 0 done, 1 failed (the message says what to do) or output lost, 2 wrong usage;\n\
                  `status` has more.\n\
                  Processes are found through /run/nacre (NACRE_RUN_DIR overrides). Logs: NACRE_LOG=debug|info|warn.\n\
                  On small virtual machines idle CPUs poll instead of halting while a process of nacre is busy\n\
                  (NACRE_IDLE_POLL=no: they halt).\n\
                  On devices nearly as fast as the page cache the mount of `up` keeps streams in /dev/shm for a moment\n\
                  (NACRE_KEEP_STREAMS=no: it does not; yes: on other devices, too).",
    arg_required_else_help = true
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}
impl Cli {
    pub(crate) fn chosen(&self) -> &Command {
        &self.command
    }
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    // The help of each command is in its own file.
    Up(up::UpArgs),
    Down(down::DownArgs),
    Status(status::StatusArgs),
    Destroy(destroy::DestroyArgs),
    Mkfs(mkfs::MkfsArgs),
    Serve(serve::ServeArgs),
    Mount(mount::MountArgs),
    Umount(down::UmountArgs),
    Sync(down::SyncArgs),
    Check(check::CheckArgs),
    Scrub(scrub::ScrubArgs),
    /// List the targets of a file system; replace a lost one, accept an old copy
    #[command(
        subcommand,
        long_about = "Lists the targets of a file system as its MGS knows them, and admits replacements under their\n\
            names: a new OST in the place of a lost one, or an old copy. See docs/targets.md.",
        after_help = "Examples:\n\
            \x20 nacre target list demo\n\
            \x20 nacre target replace demo-OST0001\n\
            \x20 nacre target accept-rollback demo-OST0001"
    )]
    Target(target::TargetCommand),
    #[command(name = "lr_reader")]
    LrReader(lr_reader::LrReaderArgs),
    /// Layouts, space and FIDs, with the commands of Lustre's `lfs`
    #[command(
        subcommand,
        long_about = "Layouts, space and FIDs of mounted files, with the options and the output of Lustre's `lfs`.\n\
            A link to this program named `lfs` is this command.",
        after_help = "Examples:\n\
            \x20 nacre lfs setstripe -c -1 -S 4M /mnt/nacre/big    new files there: over all OSTs\n\
            \x20 nacre lfs getstripe /mnt/nacre/big/file\n\
            \x20 nacre lfs df -h\n\
            \x20 nacre lfs fid2path /mnt/nacre \"$(nacre lfs path2fid /mnt/nacre/file)\""
    )]
    Lfs(lfs::LfsCommand),
    /// Parameters and devices, with the commands of Lustre's `lctl`
    #[command(
        subcommand,
        long_about = "Parameters and devices of every nacre process on this machine, with the commands of\n\
            Lustre's `lctl`. A link to this program named `lctl` is this command.",
        after_help = "Examples:\n\
            \x20 nacre lctl list_param '*'            the first parts; -R mdt: everything below mdt\n\
            \x20 nacre lctl get_param 'mdc.*.stats'\n\
            \x20 nacre lctl set_param 'mdc.*.max_mod_rpcs_in_flight=7'\n\
            \x20 nacre lctl dl"
    )]
    Lctl(lctl::LctlCommand),
    /// Measure a file system
    #[command(subcommand)]
    Bench(BenchCommand),
    Completions(manual::CompletionsArgs),
    #[command(hide = true)]
    Manual(manual::ManualArgs),
    #[command(hide = true)]
    FuseGuard(guard::GuardArgs),
}

#[derive(Subcommand, Debug)]
pub(crate) enum BenchCommand {
    // Its help is in its own file.
    Md(bench::MdArgs),
    Io(bench::IoArgs),
    Tree(bench::TreeArgs),
    Floor(bench::FloorArgs),
    #[command(hide = true)]
    MdWorker(bench::WorkerArgs),
}

pub(crate) fn run(command: &Command) -> Result<ExitCode> {
    let done = match command {
        Command::Up(args) => up::run(args),
        Command::Down(args) => down::down(args),
        Command::Status(args) => return status::run(args),
        Command::Destroy(args) => destroy::run(args),
        Command::Mkfs(args) => mkfs::run(args),
        Command::Serve(args) => serve::run(args),
        Command::Mount(args) => mount::run(args),
        Command::Umount(args) => down::umount(args),
        Command::Sync(args) => down::sync(args),
        Command::Check(args) => check::run(args),
        Command::Scrub(args) => scrub::run(args),
        Command::Target(command) => target::run(command),
        Command::LrReader(args) => lr_reader::run(args),
        Command::Lfs(command) => lfs::run(command),
        Command::Lctl(command) => lctl::run(command),
        Command::Completions(args) => manual::completions(args),
        Command::Manual(args) => manual::manual(args),
        Command::FuseGuard(args) => guard::run(args),
        Command::Bench(BenchCommand::Md(args)) => bench::md(args),
        Command::Bench(BenchCommand::Io(args)) => bench::io(args),
        Command::Bench(BenchCommand::Tree(args)) => bench::tree(args),
        Command::Bench(BenchCommand::Floor(args)) => bench::floor(args),
        Command::Bench(BenchCommand::MdWorker(args)) => bench::worker(args),
    };
    done.map(|()| ExitCode::SUCCESS)
}

impl Command {
    /// Whether the command serves. A serving process goes on when its output is lost; any other command fails.
    pub(crate) fn is_serving(&self) -> bool {
        matches!(self, Self::Up(_) | Self::Serve(_) | Self::Mount(_) | Self::Bench(BenchCommand::Floor(_)))
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_command_and_flag_is_well_formed() {
        <super::Cli as clap::CommandFactory>::command().debug_assert();
    }
}
