//! POSIX (fcntl), OFD and flock locks of files: owners, split and merge, waiting, deadlock detection.
