//! `syscall`, by which some programs (libuv) open and stat files.
//!
//! Only these system calls take our way. All others jump on to libc with registers and stack as the
//! program left them: a system call may return twice.

#[cfg(target_arch = "x86_64")]
mod hook {
    use core::arch::naked_asm;
    use core::ffi::{c_char, c_int, c_long};

    use crate::libc_functions::LibcFunction;
    use crate::shims::confine::after_system_call;
    use crate::shims::open::{opened, truncates_copy};
    use crate::shims::refused;
    use crate::shims::stat::translated_statx;
    use crate::{errno, system_calls};

    const MAX_ERRNO: c_long = 4095;

    static SYSCALL: LibcFunction = LibcFunction::new(c"syscall");

    pub fn find() {
        SYSCALL.address();
    }

    #[unsafe(naked)]
    #[cfg_attr(panic = "abort", unsafe(no_mangle))]
    pub unsafe extern "C" fn syscall() {
        naked_asm!(
            "cmp rdi, {open}",
            "je 2f",
            "cmp rdi, {openat}",
            "je 2f",
            "cmp rdi, {statx}",
            "je 2f",
            "cmp rdi, {prctl}",
            "je 2f",
            "cmp rdi, {seccomp}",
            "je 2f",
            "mov rax, [rip + {libc}]",
            "test rax, rax",
            "jz 2f",
            "jmp rax",
            "2: jmp {ours}",
            open = const libc::SYS_open,
            openat = const libc::SYS_openat,
            statx = const libc::SYS_statx,
            prctl = const libc::SYS_prctl,
            seccomp = const libc::SYS_seccomp,
            libc = sym SYSCALL,
            ours = sym ours,
        )
    }

    /// The system calls that are ours, and all of them before the constructor has run.
    unsafe extern "C" fn ours(
        number: c_long,
        first: usize,
        second: usize,
        third: usize,
        fourth: usize,
        fifth: usize,
        sixth: usize,
    ) -> c_long {
        let truncates = match number {
            libc::SYS_open => truncates_copy(libc::AT_FDCWD, first as *const c_char, second as c_int),
            libc::SYS_openat => truncates_copy(first as c_int, second as *const c_char, third as c_int),
            _ => false,
        };
        if truncates {
            return refused().into();
        }
        // SAFETY: the program's own call.
        let result = unsafe { system_calls::raw(number, [first, second, third, fourth, fifth, sixth]) };
        if (-MAX_ERRNO..0).contains(&result) {
            errno::set(-result as c_int);
            return -1;
        }
        match number {
            libc::SYS_open => opened(result as c_int, first as *const c_char, second as c_int).into(),
            libc::SYS_openat => opened(result as c_int, second as *const c_char, third as c_int).into(),
            libc::SYS_statx => translated_statx(result as c_int, fifth as *mut libc::statx).into(),
            _ => {
                after_system_call(number, first);
                result
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub use hook::find;

/// Other architectures: programs that call `syscall` see the copy's identity.
#[cfg(not(target_arch = "x86_64"))]
pub fn find() {}
