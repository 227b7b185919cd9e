//! What runs before the program, and before the constructors of other libraries.

use core::ffi::{c_char, c_int};

use crate::{mapped, shims};

type Constructor = extern "C" fn(c_int, *const *const c_char, *const *const c_char);

#[cfg_attr(panic = "abort", used, unsafe(link_section = ".init_array"))]
#[cfg_attr(not(panic = "abort"), expect(dead_code, reason = "tests do not load a table"))]
static CONSTRUCTOR: Constructor = construct;

extern "C" fn construct(_: c_int, _: *const *const c_char, environment: *const *const c_char) {
    shims::find_functions();
    mapped::begin(environment);
}
