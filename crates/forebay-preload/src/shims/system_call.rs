//! `syscall`, by which some programs (libuv) open and stat files.
//!
//! Only these system calls take our way. All others jump on to libc with registers and stack as the
//! program left them: a system call may return twice.

#[cfg(target_arch = "x86_64")]
mod hook {
    use core::arch::naked_asm;
    use core::ffi::{c_char, c_int, c_long};

    use crate::libc_functions::LibcFunction;
    use crate::shims::open::opened;
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
            "mov rax, [rip + {libc}]",
            "test rax, rax",
            "jz 2f",
            "jmp rax",
            "2: jmp {ours}",
            open = const libc::SYS_open,
            openat = const libc::SYS_openat,
            statx = const libc::SYS_statx,
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
            _ => result,
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub use hook::find;

/// Other architectures: programs that call `syscall` see the copy's identity.
#[cfg(not(target_arch = "x86_64"))]
pub fn find() {}
