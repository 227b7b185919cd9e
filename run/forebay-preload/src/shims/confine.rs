//! Programs that forbid themselves system calls (seccomp(2)) are not served from then on: `dup3`,
//! for one, may end them.

use core::ffi::{c_int, c_long, c_ulong};

use crate::libc_functions::libc_call;
use crate::mapped;

/// `seccomp` with one of these operations sets a filter.
const SET_MODES: [c_ulong; 2] =
    [libc::SECCOMP_SET_MODE_STRICT as c_ulong, libc::SECCOMP_SET_MODE_FILTER as c_ulong];

/// After a `syscall` that succeeded.
pub fn after_system_call(number: c_long, first: usize) {
    let first = first as c_ulong;
    let sets = match number {
        libc::SYS_prctl => first == libc::PR_SET_SECCOMP as c_ulong,
        libc::SYS_seccomp => SET_MODES.contains(&first),
        _ => false,
    };
    if sets {
        mapped::confine();
    }
}

#[cfg_attr(panic = "abort", unsafe(no_mangle))]
pub unsafe extern "C" fn prctl(
    option: c_int,
    second: c_ulong,
    third: c_ulong,
    fourth: c_ulong,
    fifth: c_ulong,
) -> c_int {
    let result = libc_call!(prctl(
        option => c_int, second => c_ulong, third => c_ulong, fourth => c_ulong, fifth => c_ulong
    ) -> c_int);
    if result >= 0 {
        after_system_call(libc::SYS_prctl, option as usize);
    }
    result
}
