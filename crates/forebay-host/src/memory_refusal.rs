//! The memory limits of this process: what they leave, and which one refused an allocation.
//!
//! `RLIMIT_AS` (`ulimit -v`) limits the address space of each process, touched or not: `VmSize` of
//! `/proc/self/status`. `RLIMIT_DATA` (`ulimit -d`) limits private writable memory, the heap and
//! the stacks of threads without shared mappings: `VmData`. Both limits, a lack of memory and too
//! many mappings (`vm.max_map_count`) all cause ENOMEM, so [`MemoryRefusal::of`] reads them
//! afterwards and names the one that is reached.

use std::fs;
use std::io;

use rustix::process::{Resource, getrlimit};

use crate::memory_limits::{available_bytes, kib_after};

const MIB: u64 = 1 << 20;

/// Address space that `RLIMIT_AS` leaves this process \[bytes\]; `None` without a limit.
pub fn address_left_bytes() -> Option<u64> {
    let limit_bytes = getrlimit(Resource::As).current?;
    Some(limit_bytes.saturating_sub(used_bytes(&status(), "VmSize:")))
}

/// Why the system refused memory, and advice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryRefusal {
    /// The limit that is reached, with its value; if none is, the free memory.
    pub cause: String,
    /// Advice.
    pub hint: String,
}

impl MemoryRefusal {
    /// Explains a failed allocation of `bytes`; `None` if the error is not about memory.
    pub fn of(bytes: u64, source: &io::Error) -> Option<Self> {
        match source.raw_os_error()? {
            libc::ENOMEM | libc::ENOSPC => Some(Process::this().refusal(bytes)),
            // ftruncate(2) also reports a lack of memory so.
            libc::EFBIG => Some(Self {
                cause: "RLIMIT_FSIZE is reached, which counts for shared memory as for files".into(),
                hint: "raise it with `ulimit -f`".into(),
            }),
            _ => None,
        }
    }
}

/// The facts that explain a refusal; tests use their own.
struct Process {
    status: String,
    address_limit: Option<u64>,
    data_limit: Option<u64>,
    maps: u64,
    max_maps: u64,
    available_bytes: u64,
}

impl Process {
    fn this() -> Self {
        let number = |path| fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok());
        Self {
            status: status(),
            address_limit: getrlimit(Resource::As).current,
            data_limit: getrlimit(Resource::Data).current,
            maps: fs::read_to_string("/proc/self/maps").map_or(0, |maps| maps.lines().count() as u64),
            max_maps: number("/proc/sys/vm/max_map_count").unwrap_or(u64::MAX),
            available_bytes: available_bytes(),
        }
    }

    fn refusal(&self, bytes: u64) -> MemoryRefusal {
        for (name, limit, field, what, flag) in [
            ("RLIMIT_AS", self.address_limit, "VmSize:", "address space", "-v"),
            ("RLIMIT_DATA", self.data_limit, "VmData:", "private memory", "-d"),
        ] {
            let Some(limit) = limit else { continue };
            let used = used_bytes(&self.status, field);
            if used.saturating_add(bytes) > limit {
                return MemoryRefusal {
                    cause: format!(
                        "{name} allows this process {} MiB of {what}, of which {} MiB are in use",
                        limit / MIB,
                        used / MIB
                    ),
                    hint: format!("raise the limit with `ulimit {flag}`, or give node_memory= less"),
                };
            }
        }
        if self.maps >= self.max_maps {
            return MemoryRefusal {
                cause: format!("the process has {} mappings, as many as vm.max_map_count allows", self.maps),
                hint: "raise vm.max_map_count (sysctl), or open fewer files at once".into(),
            };
        }
        MemoryRefusal {
            cause: format!("{} MiB of memory are free on this node for this job", self.available_bytes / MIB),
            hint: "give node_memory= less, or ask the scheduler for more memory".into(),
        }
    }
}

fn status() -> String {
    fs::read_to_string("/proc/self/status").unwrap_or_default()
}

fn used_bytes(status: &str, field: &str) -> u64 {
    kib_after(status, field).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(change: impl FnOnce(&mut Process)) -> Process {
        let mut process = Process {
            status: "VmSize:\t  1048576 kB\nVmData:\t  524288 kB\n".into(),
            address_limit: None,
            data_limit: None,
            maps: 400,
            max_maps: 65_530,
            available_bytes: 300 * MIB,
        };
        change(&mut process);
        process
    }

    #[test]
    fn the_limit_that_is_reached_is_named_with_its_figure() {
        let cause = |process: Process| process.refusal(100 * MIB).cause;
        let address = cause(process(|one| one.address_limit = Some(1100 * MIB)));
        assert!(
            address.starts_with("RLIMIT_AS") && address.contains("1100 MiB") && address.contains("1024 MiB")
        );
        let data = cause(process(|one| {
            one.address_limit = Some(2000 * MIB);
            one.data_limit = Some(520 * MIB);
        }));
        assert!(data.starts_with("RLIMIT_DATA") && data.contains("520 MiB") && data.contains("512 MiB"));
        assert!(cause(process(|one| one.maps = 65_530)).contains("vm.max_map_count"));
        let none = cause(process(|one| one.address_limit = Some(2000 * MIB)));
        assert!(none.contains("300 MiB of memory are free"), "{none}");
    }

    #[test]
    fn only_a_lack_of_memory_is_a_refusal() {
        let of = |code| MemoryRefusal::of(1 << 60, &io::Error::from_raw_os_error(code));
        assert!(of(libc::ENOMEM).is_some() && of(libc::EFBIG).unwrap().hint.contains("ulimit -f"));
        assert_eq!(of(libc::EMFILE), None);
    }
}
