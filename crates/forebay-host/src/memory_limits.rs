//! How much memory this process may use without being killed.
//!
//! The kernel kills a control group that exceeds its limit, without an error, so limit and usage
//! are read beforehand. The group and all its ancestors count, in version 1
//! (`memory.limit_in_bytes`) and version 2 (`memory.max`), found through `/proc/self/cgroup` and
//! `/proc/self/mountinfo`. The usage of a group contains the page cache of the files that it read.
//! A training job fills its limit with that, and the kernel drops it on demand, so file pages of
//! `memory.stat` do not count as used, as in the kernel's own `MemAvailable`.

use std::fs;
use std::path::{Path, PathBuf};

/// Bytes available now: the minimum of the system and all control groups of this process.
pub fn available_bytes() -> u64 {
    Machine::this().available_bytes()
}

/// Memory of the machine, or the smallest limit of a control group of this process \[bytes\].
pub fn limit_bytes() -> u64 {
    Machine::this().limit_bytes()
}

/// Memory of the machine \[bytes\].
pub fn physical_bytes() -> u64 {
    Machine::this().physical_bytes()
}

/// Paths of the kernel's files; tests use their own.
pub(crate) struct Machine {
    pub(crate) root: PathBuf,
}

/// The directory of a control group, and whether it is of version 2.
pub(crate) struct GroupDirectory {
    pub(crate) path: PathBuf,
    pub(crate) unified: bool,
}

struct Group {
    limit_bytes: u64,
    used_bytes: u64,
}

impl Machine {
    pub(crate) fn this() -> Self {
        Self { root: PathBuf::from("/") }
    }

    pub(crate) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.root.join(path)).unwrap_or_default()
    }

    fn physical_bytes(&self) -> u64 {
        kib_after(&self.read("proc/meminfo"), "MemTotal:").unwrap_or(u64::MAX)
    }

    fn limit_bytes(&self) -> u64 {
        self.groups().iter().map(|group| group.limit_bytes).fold(self.physical_bytes(), u64::min)
    }

    fn available_bytes(&self) -> u64 {
        let meminfo = self.read("proc/meminfo");
        let of_system = kib_after(&meminfo, "MemAvailable:").or_else(|| kib_after(&meminfo, "MemFree:"));
        self.groups()
            .iter()
            .map(|group| group.limit_bytes.saturating_sub(group.used_bytes))
            .fold(of_system.unwrap_or(u64::MAX), u64::min)
    }

    /// All control groups of this process that have a limit.
    fn groups(&self) -> Vec<Group> {
        let group = |group: GroupDirectory| {
            if group.unified { unified_group(&group.path) } else { version_1_group(&group.path) }
        };
        self.directories("memory").into_iter().filter_map(group).collect()
    }

    /// Directories of the control groups of this process, its own first, in version 1 or 2.
    pub(crate) fn directories(&self, controller: &str) -> Vec<GroupDirectory> {
        let (memberships, mounts) = (self.read("proc/self/cgroup"), self.read("proc/self/mountinfo"));
        let mut directories = Vec::new();
        for line in memberships.lines() {
            // hierarchy:controllers:path; version 2 has hierarchy 0 and no controllers.
            let mut parts = line.splitn(3, ':');
            let (Some(hierarchy), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
            else {
                continue;
            };
            let unified = hierarchy == "0" && controllers.is_empty();
            if !unified && !controllers.split(',').any(|name| name == controller) {
                continue;
            }
            let mounted = find_mount(&mounts, (!unified).then_some(controller), path);
            let Some((top, leaf)) = mounted else { continue };
            let (top, mut at) = (self.inside(&top), self.inside(&leaf));
            loop {
                directories.push(GroupDirectory { path: at.clone(), unified });
                if at == top || !at.pop() {
                    break;
                }
            }
        }
        directories
    }

    fn inside(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }
}

/// Mount point of a hierarchy (a controller of version 1, or version 2), and the directory of the
/// group `path` below it.
fn find_mount(mountinfo: &str, controller: Option<&str>, path: &str) -> Option<(PathBuf, PathBuf)> {
    for line in mountinfo.lines() {
        // 36 35 98:0 /root /mount/point options optional-fields - type source super-options
        let Some((before, after)) = line.split_once(" - ") else { continue };
        let (before, after): (Vec<&str>, Vec<&str>) =
            (before.split(' ').collect(), after.split(' ').collect());
        let (Some(root), Some(point), Some(kind)) = (before.get(3), before.get(4), after.first()) else {
            continue;
        };
        let fits = match controller {
            None => *kind == "cgroup2",
            Some(controller) => {
                *kind == "cgroup"
                    && after.get(2).is_some_and(|options| options.split(',').any(|word| word == controller))
            }
        };
        if !fits {
            continue;
        }
        let point = PathBuf::from(unescape(point));
        // In a container the root may be the container's own group, or `path` may lead outside the
        // mount ("/../.."): then use the top of the mount.
        let below = Path::new(path).strip_prefix(unescape(root)).ok();
        let below = below.filter(|below| !below.components().any(|part| part.as_os_str() == ".."));
        let leaf = match below {
            Some(below) if !below.as_os_str().is_empty() => point.join(below),
            _ => point.clone(),
        };
        return Some((point, leaf));
    }
    None
}

/// Decodes the octal escapes of mountinfo (`\040` is a space).
fn unescape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        plain.push_str(&rest[..at]);
        if let Some(byte) = rest.get(at + 1..at + 4).and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            plain.push(char::from(byte));
            rest = &rest[at + 4..];
        } else {
            plain.push('\\');
            rest = &rest[at + 1..];
        }
    }
    plain.push_str(rest);
    plain
}

/// A group of version 2; `None` without a limit.
fn unified_group(directory: &Path) -> Option<Group> {
    let limit_bytes = number(&directory.join("memory.max"))?;
    let usage = number(&directory.join("memory.current"))?;
    let stat = fs::read_to_string(directory.join("memory.stat")).unwrap_or_default();
    let files = ["inactive_file", "active_file"].iter().filter_map(|name| value_after(&stat, name)).sum();
    Some(Group { limit_bytes, used_bytes: usage.saturating_sub(files) })
}

/// A group of version 1, where "unlimited" is a number larger than any memory.
fn version_1_group(directory: &Path) -> Option<Group> {
    let limit_bytes = number(&directory.join("memory.limit_in_bytes"))?;
    let usage = number(&directory.join("memory.usage_in_bytes"))?;
    let stat = fs::read_to_string(directory.join("memory.stat")).unwrap_or_default();
    let files =
        ["total_inactive_file", "total_active_file"].iter().filter_map(|name| value_after(&stat, name)).sum();
    Some(Group { limit_bytes, used_bytes: usage.saturating_sub(files) })
}

/// The number in a file; `None` also for "max".
pub(crate) fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

pub(crate) fn value_after(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next() == Some(name)).then(|| words.next()?.parse().ok()).flatten()
    })
}

pub(crate) fn kib_after(text: &str, name: &str) -> Option<u64> {
    value_after(text, name)?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const MEMINFO: &str = "MemTotal: 8388608 kB\nMemFree: 100 kB\nMemAvailable: 4194304 kB\n";

    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Machine) {
        let directory = tempfile::tempdir().unwrap();
        for (path, text) in files.iter().chain(&[("proc/meminfo", MEMINFO)]) {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let machine = Machine { root: directory.path().into() };
        (directory, machine)
    }

    #[test]
    fn without_control_groups_the_system_decides() {
        let (_directory, machine) = machine(&[("proc/self/cgroup", "0::/\n"), ("proc/self/mountinfo", "")]);
        assert_eq!(machine.limit_bytes(), 8192 * MIB);
        assert_eq!(machine.available_bytes(), 4096 * MIB);
    }

    #[test]
    fn the_tightest_ancestor_counts_and_file_pages_can_be_had() {
        let (_directory, machine) = machine(&[
            ("proc/self/cgroup", "0::/job/step\n"),
            ("proc/self/mountinfo", "30 25 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"),
            ("sys/fs/cgroup/job/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/job/memory.current", "1073741824\n"),
            (
                "sys/fs/cgroup/job/memory.stat",
                "anon 5\ninactive_file 524288000\nactive_file 24288000\nfile 9\n",
            ),
            ("sys/fs/cgroup/job/step/memory.max", "max\n"),
            ("sys/fs/cgroup/job/step/memory.current", "1000\n"),
        ]);
        assert_eq!(machine.limit_bytes(), 1024 * MIB);
        assert_eq!(machine.available_bytes(), 548_576_000);
    }

    #[test]
    fn version_1_is_read_beside_an_unused_version_2() {
        let (_directory, machine) = machine(&[
            ("proc/self/cgroup", "9:cpu:/x\n4:memory,hugetlb:/docker/abc/sub\n0::/\n"),
            (
                "proc/self/mountinfo",
                "29 23 0:25 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                 31 23 0:27 /docker/abc /sys/fs/cgroup/the\\040memory rw - cgroup cgroup rw,memory,hugetlb\n",
            ),
            ("sys/fs/cgroup/the memory/memory.limit_in_bytes", "67108864\n"),
            ("sys/fs/cgroup/the memory/memory.usage_in_bytes", "33554432\n"),
            ("sys/fs/cgroup/the memory/memory.stat", "inactive_file 1\ntotal_inactive_file 1048576\n"),
            ("sys/fs/cgroup/the memory/sub/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/the memory/sub/memory.usage_in_bytes", "0\n"),
        ]);
        assert_eq!(machine.limit_bytes(), 64 * MIB);
        assert_eq!(machine.available_bytes(), 33 * MIB);
    }

    #[test]
    fn a_group_outside_of_what_is_mounted_is_read_at_the_top() {
        let (_directory, machine) = machine(&[
            ("proc/self/cgroup", "0::/../../other\n"),
            ("proc/self/mountinfo", "30 25 0:26 / /cg rw - cgroup2 cgroup2 rw\n"),
            ("cg/memory.max", "2097152\n"),
            ("cg/memory.current", "3145728\n"),
        ]);
        assert_eq!(machine.limit_bytes(), 2 * MIB);
        assert_eq!(machine.available_bytes(), 0);
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(available_bytes() > 0 && available_bytes() < u64::MAX);
        assert!(limit_bytes() <= physical_bytes() && physical_bytes() < u64::MAX);
    }
}
