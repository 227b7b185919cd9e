//! The functions of libc that the shims replace, or those of another preloaded library behind ours.

use core::ffi::{CStr, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

/// A function that is looked up at its first use.
#[repr(C)]
pub struct LibcFunction {
    /// Null before the first use; the first field, where assembly reads it.
    found: AtomicPtr<c_void>,
    name: &'static CStr,
}

impl LibcFunction {
    pub const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// The address of the function; null if this libc has none of its name.
    pub fn address(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if found.is_null() { self.find() } else { found }
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        // SAFETY: the name ends with a zero.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// Calls the function of libc that has the name of a shim; without one the call fails with ENOSYS.
macro_rules! libc_call {
    ($name:ident($($argument:expr => $type:ty),*) -> $result:ty) => {{
        static FUNCTION: $crate::libc_functions::LibcFunction = {
            // SAFETY: stringify! has no zero, concat! adds the only one.
            let name = unsafe { ::core::ffi::CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes()) };
            $crate::libc_functions::LibcFunction::new(name)
        };
        let address = FUNCTION.address();
        if address.is_null() {
            $crate::errno::set(libc::ENOSYS);
            <$result as $crate::libc_functions::Failure>::FAILED
        } else {
            // SAFETY: libc documents this signature for the name.
            let function = unsafe {
                ::core::mem::transmute::<*mut ::core::ffi::c_void, unsafe extern "C" fn($($type),*) -> $result>(address)
            };
            // SAFETY: the arguments are those of the caller of the shim, who answers for them.
            unsafe { function($($argument),*) }
        }
    }};
}
pub(crate) use libc_call;

/// What a function returns when it fails.
pub trait Failure {
    const FAILED: Self;
}

impl Failure for core::ffi::c_int {
    const FAILED: Self = -1;
}

impl Failure for *mut libc::FILE {
    const FAILED: Self = ptr::null_mut();
}
