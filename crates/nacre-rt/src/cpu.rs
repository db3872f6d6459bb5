//! The CPU of a thread.

/// Binds this thread to a CPU.
///
/// # Errors
/// EINVAL when the CPU is offline or not among those that this process may use.
pub fn bind(cpu: usize) -> rustix::io::Result<()> {
    let mut cpus = rustix::thread::CpuSet::new();
    if cpu >= rustix::thread::CpuSet::MAX_CPU {
        return Err(rustix::io::Errno::INVAL);
    }
    cpus.set(cpu);
    rustix::thread::sched_setaffinity(None, &cpus)
}
