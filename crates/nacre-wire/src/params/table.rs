//! The table of parameters: a row for each, in groups with one owner.
//!
//! The comment of a group names the file with the arms of its owner. After a change of the table:
//! `NACRE_BLESS=1 cargo test -p nacre-wire --test parameters` writes `docs/parameters.md`.

use crate::params::bind::Key;
use crate::params::row::Calls::{InFlight, PerName, Table};
use crate::params::row::Default::{Computed, Number};
use crate::params::row::{Row, SetWhen};
use nacre_types::DOM_BYTES_MAX;

/// Largest limits of a client: modifying requests, and all requests.
pub const CLIENT_MOD_RPCS_MAX: u16 = 511;
/// See [`CLIENT_MOD_RPCS_MAX`].
pub const CLIENT_RPCS_MAX: u16 = 512;

/// The words of `atime` and `dir_atime`.
const ATIMES: &[&str] = &["relatime", "noatime", "strictatime"];

/// Rows with one owner.
#[derive(Debug)]
pub struct Group {
    /// The owner and the subject.
    pub title: &'static str,
    /// Its rows.
    pub rows: &'static [&'static Row],
}

/// The kind of process that has the parameters of a component, for people.
pub fn owner_of(component: &str) -> &'static str {
    match component {
        "mgs" => "an MGS",
        "mdt" | "osp" | "lod" => "an MDT",
        "obdfilter" => "an OST",
        _ => "a mount",
    }
}

/// Makes an enum of keys per group, and [`GROUPS`].
macro_rules! groups {
    ($($(#[$doc:meta])* $name:ident in $components:expr, $title:literal { $($key:ident: $row:expr;)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq)]
            pub enum $name { $(
                #[doc = concat!("See its row: `", stringify!($row), "`.")]
                $key,
            )* }
            impl $name {
                /// The row of this key.
                pub const fn row(self) -> &'static Row {
                    match self { $(Self::$key => const { &$row.or_components(&$components) },)* }
                }
            }
            impl Key for $name {
                const ALL: &'static [Self] = &[$(Self::$key),*];
                fn row(self) -> &'static Row {
                    $name::row(self)
                }
            }
        )*
        /// The whole table.
        pub const GROUPS: &[Group] = &[$(Group { title: $title, rows: &[$($name::$key.row()),*] }),*];
    };
}

groups! {
    /// `nacre-client/src/params.rs`
    MountParam in ["llite"], "Mounts" {
        Stats: Row::counters("stats", PerName, "Calls of this mount: samples, unit, least, greatest, sum, sum of squares.");
        Uuid: Row::text("uuid", "Identity of this mount, new at each start.");
        ReadOnly: Row::switch("read_only", false, "1: changes are refused (EROFS), and access times stay. `mount -o remount` \
            sets it, and tells the kernel.").set(SetWhen::Running);
        Atime: Row::words("atime", ATIMES, "relatime", "When reads of files change access times, as the mount options of \
            these names say. `mount -o remount` sets it, and tells the kernel.").set(SetWhen::Running);
        DirAtime: Row::words("dir_atime", ATIMES, "relatime", "The same for listings of directories; `noatime` with the \
            mount option `nodiratime`.").set(SetWhen::Running);
        DirAttrCache: Row::switch("dir_attr_cache", true, "1: names and attributes are cached while the MDT grants this \
            mount locks of the inodes. 0: they are requested each time.");
        WriteBack: Row::switch("write_back", true, "1: what is written to a file that no other client has open is kept in \
            memory for up to half a second, and sent in large requests. 0: each write is a request. A mount \
            with the option `write_through` begins with 0.").set(SetWhen::Running);
        MaxDirtyMb: Row::number("max_dirty_mb", (1, 65_536, "MiB"), Number(64), "Bytes that are kept so, or under way to the \
            OSTs; further writes wait.").set(SetWhen::Running);
        DirtyBytes: Row::gauge("dirty_bytes", "bytes", "Bytes that are kept so, or under way.");
    }

    /// `nacre-client/src/params.rs`
    NamespaceParam in ["ldlm"], "Locks of inodes that an MDT has granted to a mount" {
        LruSize: Row::number("*.lru_size", (1, 10_000_000, "inodes"), Number(100_000), "Inodes of which a mount keeps locks. \
            Beyond it those that were not used for the longest time are returned.").set(SetWhen::Running);
        LockCount: Row::gauge("*.lock_count", "inodes", "Inodes of which the mount has locks.");
        Names: Row::gauge("*.names", "names", "Names that are cached under these locks.");
        Bytes: Row::gauge("*.bytes", "bytes", "Extended attributes and targets of symbolic links that are cached.");
        Hits: Row::gauge("*.hits", "requests", "Requests that the cache has made unnecessary.");
        Misses: Row::gauge("*.misses", "requests", "Questions for which the MDT was asked.");
        Revokes: Row::gauge("*.revokes", "locks", "Locks that the MDT has revoked.");
        Cancels: Row::gauge("*.cancels", "locks", "Locks that were returned beyond `lru_size`.");
    }

    /// `nacre-fuse/src/island.rs`
    FrontParam in ["llite"], "Requests of the kernel to a mount" {
        FuseRequests: Row::counters("fuse_requests", PerName, "Requests of the kernel: samples, microseconds: least, \
            greatest, sum, sum of squares.");
        FuseWaiting: Row::text("fuse_waiting", "Calls that wait for a reply: operation, pid of the caller (0: not known), \
            milliseconds so far.");
        KernelCache: Row::report("kernel_cache", "What the kernel was notified to forget: all names by an epoch, names, \
            attributes of inodes; names whose notification waited in the kernel, so that an epoch followed; replies whose \
            validity had ended before they were written; replies written too late, and suspends of the machine, after which \
            everything was forgotten. Then requests that were served without a wait, and LOOKUPs that found no name.");
        Transport: Row::text("transport", "The path of the kernel's requests, io_uring (replies on the CPU of the caller) \
            or /dev/fuse, and why.");
    }

    /// `nacre-client/src/params.rs`
    ImportParam in ["mgc", "mdc", "osc"], "Connections of a mount to its targets" {
        Stats: Row::counters("stats", PerName, "Requests sent to the target: samples, unit, least, greatest, sum, sum of \
            squares.");
        State: Row::report("state", "State of the import and its history.");
        Import: Row::report("import", "The import in full.");
        Active: Row::switch("active", true, "1: calls wait for a server that is down. 0: calls that need it fail at once \
            (EIO).").only(&["osc"]);
        MdcRpcStats: Row::counters("rpc_stats", InFlight, "Modifying requests by the number in flight when each was \
            sent.").only(&["mdc"]);
        OscRpcStats: Row::counters("rpc_stats", Table, "Reads and writes sent: their sizes in pages, how many were in \
            flight when each was sent (with it), and their first page modulo 1024.").only(&["osc"]);
        CurGrantBytes: Row::gauge("cur_grant_bytes", "bytes", "Space that the OST keeps for what this mount has in \
            memory.").only(&["osc"]);
        CurDirtyBytes: Row::gauge("cur_dirty_bytes", "bytes", "Of that, what is used by bytes in memory.").only(&["osc"]);
        MdcMaxModRpcs: max_mod_rpcs(7).only(&["mdc"]);
        OscMaxModRpcs: max_mod_rpcs(8).only(&["osc"]);
        MdcMaxRpcs: max_rpcs(8).only(&["mdc"]);
        OscMaxRpcs: max_rpcs(16).only(&["osc"]);
        MaxPagesPerRpc: Row::number("max_pages_per_rpc", (256, 4096, "pages"), Number(1024), "Largest read or write in pages of \
            4 KiB. The kernel asks for at most 256 at a time; bytes that a mount has kept are sent together.").only(&["osc"]);
    }

    /// `nacre-target/src/params/common.rs`
    TargetParam in ["mgs", "mdt", "obdfilter"], "Every target" {
        Uuid: Row::text("uuid", "Identity of the target.");
        Instance: Row::gauge("instance", "starts", "Starts of the target.");
        NumExports: Row::gauge("num_exports", "clients", "Known clients.");
        LastTransno: Row::gauge("last_transno", "", "Number of the latest change.");
        LastCommitted: Row::gauge("last_committed", "", "Number of the latest durable change.");
        LeaseMs: Row::number("lease_ms", (1000, 300_000, "milliseconds"), Number(10_000), "Time for which a silent client \
            keeps its locks and opens.").set(SetWhen::AtStart("nacre serve --lease"));
        MaxModRpcs: Row::number("max_mod_rpcs_in_flight", (1, 512, "requests"), Number(8), "Modifying requests that a \
            client may have in flight.").from_next_connect();
        FailLoc: Row::checked("fail_loc", "the name of a fault point, or 0 for none", "0", "The fault point that is set; \
            only builds for tests have any.").set(SetWhen::Running);
        FailVal: Row::number("fail_val", (1, u32::MAX as u64, "times"), Number(1), "How often the fault point that is set \
            next strikes; only builds for tests have any.").set(SetWhen::Running);
        RecoveryStatus: Row::report("recovery_status", "Recovery after an unclean start: state, clients, replayed requests.");
        Storage: Row::report("storage", "The storage engine: its contents and their bounds.");
    }

    /// `nacre-target/src/params/common.rs`
    ExportParam in ["mgs", "mdt", "obdfilter"], "A client as a target sees it (for the administrator)" {
        Uuid: Row::text("exports.*.uuid", "Identity of the client.");
        State: Row::report("exports.*.state", "State of the client.");
        Export: Row::report("exports.*.export", "The connection of the client in full.");
        ReplyData: Row::report("exports.*.reply_data", "Reply records of the client: now, maximum, released by its last_xid \
            and by their tag.");
        Stats: Row::counters("exports.*.stats", PerName, "Operations of the client: count, min, max, sum, sum of squares.");
    }

    /// `nacre-mgs/src/service/params.rs`
    MgsParam in ["mgs"], "The MGS" {
        Register: Row::words("register", &["open", "known"], "open", "The targets that may register. `open`: any; `known`: \
            those that the MGS knows, and new ones on its own machine. It becomes `known` one minute after clients have \
            first mounted a file system. The MGS stores the value.").set(SetWhen::Running);
    }

    /// `nacre-mgs/src/service/params.rs`
    FileSystemParam in ["mgs"], "A file system that the MGS knows" {
        Live: Row::report("live.*", "The targets of the file system, as they registered, and the permanent parameters.");
    }

    /// `nacre-mdt/src/service/params.rs`
    MdtParam in ["mdt"], "An MDT" {
        MdStats: Row::counters("md_stats", PerName, "Operations since the start: count, min, max, sum, sum of squares.");
        OpenFiles: Row::gauge("open_files", "handles", "Handles that clients have open, or have closed less than 0.1 s ago.");
        CommitOnSharing: Row::switch("commit_on_sharing", false, "1: a change waits until changes of other clients on \
            which it depends are durable. 0: it does not wait if the other client has the reply and can replay its change.");
        InodeLocks: Row::gauge("inode_locks", "inodes", "Inodes of which clients have locks, counted once for each client: \
            they may cache names and attributes.");
        InodeLocksMax: Row::number("inode_locks_max", (1, 16_000_000, "inodes"), Number(400_000), "Limit of inode_locks for \
            one client. At the limit, a new lock replaces one that is older than 30 s.");
        InodeLockRevokes: Row::gauge("inode_lock_revokes", "inodes", "Inodes whose locks were revoked since the start.");
        InodeLockWaiting: Row::gauge("inode_lock_waiting", "changes", "Changes that wait until other clients have returned \
            locks of inodes.");
        FileLocks: Row::gauge("file_locks", "locks", "flock and fcntl locks held.");
        FileLocksWaiting: Row::gauge("file_locks_waiting", "requests", "flock and fcntl requests that wait.");
        UnsettledFiles: Row::gauge("unsettled_files", "files", "Files whose size is being requested from the OSTs.");
    }

    /// `nacre-mdt/src/service/params.rs`
    QosParam in ["lod"], "Choice of OSTs for new files, by an MDT" {
        ThresholdRr: Row::number("qos_threshold_rr", (0, 100, "%"), Number(17), "New files go to the OSTs in turn while \
            the fullest OST has at most this part less free space than the emptiest, otherwise by free space. 100: always \
            in turn.");
        PrioFree: Row::number("qos_prio_free", (0, 100, "%"), Number(91), "When files go by free space: the weight \
            of free space against recent use of an OST. 100: only free space counts.");
    }

    /// `nacre-mdt/src/service/params.rs`
    DomParam in ["lod"], "Data of small files, kept by an MDT" {
        DomStripesize: Row::number("dom_stripesize", (0, DOM_BYTES_MAX as u64, "bytes"), Number(8192), "An MDT keeps the bytes \
            of a new file as long as there are at most that many; then they move to OSTs. 0: they are at OSTs from the first \
            byte on. A layout of a file or directory may say otherwise (`lfs setstripe -E`).");
    }

    /// `nacre-mdt/src/service/params.rs`
    OstRoomParam in ["mdt"], "An OST as the allocator of an MDT sees it" {
        OstRoom: Row::text("ost_room.*", "Whether it is connected, its free space, objects reserved, and whether it gets no \
            new files because it is full.");
    }

    /// `nacre-mdt/src/service/params.rs`
    OspParam in ["osp"], "Use of an OST by an MDT" {
        Active: Row::switch("active", true, "1: the OST may get new files. 0: it gets none.");
        ReservedMbLow: Row::number("reserved_mb_low", MEGABYTES, Computed("0.1 % of its size"), "An OST with less free space \
            gets no new files.");
        ReservedMbHigh: Row::number("reserved_mb_high", MEGABYTES, Computed("0.2 % of its size"), "A full OST with more free \
            space gets new files again. It is always more than reserved_mb_low: setting one adjusts the other.");
    }

    /// `nacre-ost/src/service/params.rs`
    OstParam in ["obdfilter"], "An OST" {
        Stats: Row::counters("stats", PerName, "Operations since the start. Clearing them clears brw_stats too.");
        BrwStats: Row::counters("brw_stats", Table, "Sizes of bulk transfers. Clearing them clears stats too.");
        KbytesTotal: Row::gauge("kbytestotal", "KiB", "Size of the store.");
        KbytesFree: Row::gauge("kbytesfree", "KiB", "Free space of the device.");
        KbytesAvail: Row::gauge("kbytesavail", "KiB", "Free space for objects, at the last statfs.");
        FilesTotal: Row::gauge("filestotal", "objects", "Objects in use, and the estimated number that fit.");
        FilesFree: Row::gauge("filesfree", "objects", "Estimated number of objects that fit.");
        PromisedObjects: Row::gauge("promised_objects", "objects", "Objects promised to MDTs and not yet written.");
        TotGranted: Row::gauge("tot_granted", "bytes", "Space kept for what clients have in memory; not reported as free.");
        Tombstones: Row::gauge("tombstones", "objects", "Destroyed objects that refuse late writes.");
        SyncOnCancel: Row::switch("sync_on_cancel", false, "1: when a client cancels a lock for writing, a sync of its \
            writes under the lock starts; no request waits for the sync. 0: they are synced with others.");
        WritethroughCacheEnable: Row::switch("writethrough_cache_enable", false, "1: bytes that clients write stay in the \
            page cache of the store. 0: requests of 1 MiB and more of clients in other processes go past it, on devices that \
            take more than 400 MiB/s.");
        Scrub: Row::work("scrub", &["start", "stop"], "Compares every written block of all objects with its checksum, in the \
            background. Shown are the state, times in seconds since 1970, the progress towards the objects and bytes in \
            use, regions whose check after a crash has not ended, and the damaged places of the latest pass. A new pass, and \
            a start of the target, forget it. `nacre scrub` names the files.");
        ScrubRateMb: Row::number("scrub_rate_mb", (0, 1_000_000, "MiB/s"), Number(50), "Limit for a scrub, which holds at \
            once. 0: no limit. Each object, and each read of up to 256 KiB, counts as at least 32 KiB.");
        LockCount: Row::gauge("lock_count", "locks", "Extent locks held or awaited.");
        LockWaiting: Row::gauge("lock_waiting", "locks", "Extent locks awaited.");
        ConfigVersion: Row::gauge("config_version", "", "Version of the list of targets at the registration.");
    }
}

const MEGABYTES: (u64, u64, &str) = (1, u32::MAX as u64, "MiB");

const fn max_mod_rpcs(default: u64) -> Row {
    let range = (1, CLIENT_MOD_RPCS_MAX as u64, "requests");
    Row::number(
        "max_mod_rpcs_in_flight",
        range,
        Number(default),
        "Modifying requests in flight. The limit of the server \
        holds too.",
    )
}
const fn max_rpcs(default: u64) -> Row {
    let range = (1, CLIENT_RPCS_MAX as u64, "requests");
    Row::number(
        "max_rpcs_in_flight",
        range,
        Number(default),
        "Requests in flight. At least one more than \
        max_mod_rpcs_in_flight.",
    )
}
