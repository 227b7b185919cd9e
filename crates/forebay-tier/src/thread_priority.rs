//! A low priority for threads whose work the program does not wait for.

/// As nice(1) without options.
const NICE: i32 = 10;

// linux/ioprio.h, which libc does not have.
const IOPRIO_WHO_PROCESS: libc::c_int = 1;
const IOPRIO_CLASS_SHIFT: u32 = 13;
const IOPRIO_CLASS_BEST_EFFORT: libc::c_int = 2;
const IOPRIO_CLASS_IDLE: libc::c_long = 3;
const IOPRIO_LOWEST: libc::c_int = 7;

/// Lowers the priority of the calling thread for processors and devices; a lower one stays.
///
/// On Linux the calls that name process 0 mean the calling thread. A system that refuses leaves it
/// as it is.
pub(crate) fn lower_own_priority() {
    if rustix::process::getpriority_process(None).is_ok_and(|nice| nice < NICE) {
        let _ = rustix::process::setpriority_process(None, NICE);
    }
    // SAFETY: the call takes numbers only.
    let now = unsafe { libc::syscall(libc::SYS_ioprio_get, IOPRIO_WHO_PROCESS, 0) };
    if now >= 0 && now >> IOPRIO_CLASS_SHIFT != IOPRIO_CLASS_IDLE {
        let lowest = (IOPRIO_CLASS_BEST_EFFORT << IOPRIO_CLASS_SHIFT) | IOPRIO_LOWEST;
        // SAFETY: the call takes numbers only.
        unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, lowest) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_lowers_its_own_priority_and_no_other() {
        let nice = || rustix::process::getpriority_process(None).unwrap();
        let before = nice();
        let lowered = std::thread::spawn(move || {
            lower_own_priority();
            nice()
        });
        assert_eq!(lowered.join().unwrap(), before.max(NICE));
        assert_eq!(nice(), before);
    }
}
