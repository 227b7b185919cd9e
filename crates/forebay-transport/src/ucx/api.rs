//! The part of UCX's C API that is used, and its library, which is loaded at run time.
//!
//! Structures have the layout of `ucp.h` 1.22 on 64-bit machines. Each begins with a mask of the
//! fields that are set, and a library reads no other fields, so older and newer ones understand
//! them. `ucp_ep_query` knows the transports of an endpoint since 1.14.
//!
//! Source: `ucp/api/ucp.h` and `ucp/api/ucp_def.h` of `OpenUCX`.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicI8, Ordering};

use libloading::Library;

/// The library's name; the system's linker finds it.
pub(super) const LIBRARY: &str = "libucp.so.0";
/// The version of the API that is asked for. A library of a higher minor version provides it.
const API: (c_uint, c_uint) = (1, 14);

pub(super) type UcpContext = *mut c_void;
pub(super) type UcpWorker = *mut c_void;
pub(super) type UcpEndpoint = *mut c_void;
pub(super) type UcpMemory = *mut c_void;
pub(super) type UcpRemoteKey = *mut c_void;
/// A request, a negative status, or null for what is complete.
pub(super) type UcpRequest = *mut c_void;
/// An enumeration of one byte: it is packed in `ucs/type/status.h`.
pub(super) type UcsStatus = i8;

pub(super) const OK: UcsStatus = 0;
pub(super) const IN_PROGRESS: UcsStatus = 1;
pub(super) const BUSY: UcsStatus = -15;
/// The lowest status of an error.
const LAST_ERROR: isize = -100;

pub(super) const FEATURE_RMA: u64 = 1 << 1;
pub(super) const FEATURE_WAKEUP: u64 = 1 << 4;
const PARAM_FEATURES: u64 = 1 << 0;
const WORKER_THREAD_MODE: u64 = 1 << 0;
const THREADS_SERIALIZED: c_int = 1;
const EP_ADDRESS: u64 = 1 << 0;
const EP_ERROR_MODE: u64 = 1 << 1;
const EP_ERROR_HANDLER: u64 = 1 << 2;
/// A peer that fails ends its requests with an error.
const ERRORS_OF_PEER: c_int = 1;
const MAP_ADDRESS: u64 = 1 << 0;
const MAP_LENGTH: u64 = 1 << 1;
const MAP_PROTECTION: u64 = 1 << 3;
/// Local and remote read.
const READ_ONLY: c_uint = 1 << 0 | 1 << 8;
const OP_FLAGS: u32 = 1 << 4;
const CLOSE_FORCE: u32 = 1 << 0;
const EP_TRANSPORTS: u64 = 1 << 3;

#[repr(C)]
pub(super) struct Params {
    field_mask: u64,
    features: u64,
    others: [u64; 9],
}

impl Params {
    pub(super) fn features(features: u64) -> Self {
        Self { field_mask: PARAM_FEATURES, features, others: [0; 9] }
    }
}

#[repr(C)]
pub(super) struct WorkerParams {
    field_mask: u64,
    thread_mode: c_int,
    others: [u64; 23],
}

impl WorkerParams {
    /// Threads use the worker one at a time.
    pub(super) fn serialized() -> Self {
        Self { field_mask: WORKER_THREAD_MODE, thread_mode: THREADS_SERIALIZED, others: [0; 23] }
    }
}

/// Called from `ucp_worker_progress` when an endpoint has failed.
unsafe extern "C" fn store_failure(failure: *mut c_void, _endpoint: UcpEndpoint, status: UcsStatus) {
    // SAFETY: the argument is the `failure` of `EndpointParams::to`, which stays until the endpoint
    // is closed.
    unsafe { &*failure.cast::<AtomicI8>() }.store(status, Ordering::Relaxed);
}

#[repr(C)]
pub(super) struct EndpointParams {
    field_mask: u64,
    address: *const c_void,
    error_mode: c_int,
    handler: unsafe extern "C" fn(*mut c_void, UcpEndpoint, UcsStatus),
    handler_argument: *const c_void,
    others: [u64; 8],
}

impl EndpointParams {
    /// An endpoint to the worker of this address, which must stay until the endpoint is made. Why
    /// it fails later is stored in `failure`, which must stay until it is closed.
    pub(super) fn to(address: &[u8], failure: &AtomicI8) -> Self {
        Self {
            field_mask: EP_ADDRESS | EP_ERROR_MODE | EP_ERROR_HANDLER,
            address: address.as_ptr().cast(),
            error_mode: ERRORS_OF_PEER,
            handler: store_failure,
            handler_argument: std::ptr::from_ref(failure).cast(),
            others: [0; 8],
        }
    }
}

#[repr(C)]
pub(super) struct MapParams {
    field_mask: u64,
    address: *const c_void,
    length: usize,
    flags: c_uint,
    protection: c_uint,
    others: [u64; 2],
}

impl MapParams {
    pub(super) fn read_only(bytes: &[u8]) -> Self {
        Self {
            field_mask: MAP_ADDRESS | MAP_LENGTH | MAP_PROTECTION,
            address: bytes.as_ptr().cast(),
            length: bytes.len(),
            flags: 0,
            protection: READ_ONLY,
            others: [0; 2],
        }
    }
}

#[repr(C)]
pub(super) struct RequestParam {
    op_attr_mask: u32,
    flags: u32,
    others: [u64; 11],
}

impl RequestParam {
    pub(super) fn plain() -> Self {
        Self { op_attr_mask: 0, flags: 0, others: [0; 11] }
    }

    /// Closes an endpoint without waiting for its peer; its requests end with an error.
    pub(super) fn force_close() -> Self {
        Self { op_attr_mask: OP_FLAGS, flags: CLOSE_FORCE, others: [0; 11] }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct TransportEntry {
    transport: *const c_char,
    device: *const c_char,
}

#[repr(C)]
pub(super) struct EndpointAttributes {
    field_mask: u64,
    names_and_addresses: [u64; 36],
    entries: *mut TransportEntry,
    count: c_uint,
    entry_size: usize,
    user_data: *mut c_void,
}

const _: () = assert!(size_of::<Params>() == 88 && size_of::<WorkerParams>() == 200);
const _: () = assert!(size_of::<EndpointParams>() == 104 && size_of::<MapParams>() == 48);
const _: () = assert!(size_of::<RequestParam>() == 96 && size_of::<EndpointAttributes>() == 328);

macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of the library.
        pub(super) struct Api {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// Never closed: the library has hooks and threads of its own.
            _library: ManuallyDrop<Library>,
        }

        impl Api {
            fn of(library: Library) -> Result<Self, String> {
                Ok(Self {
                    $($name: {
                        // SAFETY: the type is that of the declaration in `ucp.h`; the library is
                        // never closed.
                        let symbol = unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) };
                        *symbol.map_err(|_| format!("{LIBRARY} lacks {}", stringify!($name)))?
                    },)*
                    _library: ManuallyDrop::new(library),
                })
            }
        }
    };
}

functions! {
    ucp_get_version: fn(*mut c_uint, *mut c_uint, *mut c_uint);
    ucp_init_version: fn(c_uint, c_uint, *const Params, *const c_void, *mut UcpContext) -> UcsStatus;
    ucp_cleanup: fn(UcpContext);
    ucp_worker_create: fn(UcpContext, *const WorkerParams, *mut UcpWorker) -> UcsStatus;
    ucp_worker_destroy: fn(UcpWorker);
    ucp_worker_get_address: fn(UcpWorker, *mut *mut c_void, *mut usize) -> UcsStatus;
    ucp_worker_release_address: fn(UcpWorker, *mut c_void);
    ucp_worker_progress: fn(UcpWorker) -> c_uint;
    ucp_worker_get_efd: fn(UcpWorker, *mut c_int) -> UcsStatus;
    ucp_worker_arm: fn(UcpWorker) -> UcsStatus;
    ucp_ep_create: fn(UcpWorker, *const EndpointParams, *mut UcpEndpoint) -> UcsStatus;
    ucp_ep_close_nbx: fn(UcpEndpoint, *const RequestParam) -> UcpRequest;
    ucp_ep_query: fn(UcpEndpoint, *mut EndpointAttributes) -> UcsStatus;
    ucp_ep_rkey_unpack: fn(UcpEndpoint, *const c_void, *mut UcpRemoteKey) -> UcsStatus;
    ucp_rkey_destroy: fn(UcpRemoteKey);
    ucp_mem_map: fn(UcpContext, *const MapParams, *mut UcpMemory) -> UcsStatus;
    ucp_mem_unmap: fn(UcpContext, UcpMemory) -> UcsStatus;
    ucp_rkey_pack: fn(UcpContext, UcpMemory, *mut *mut c_void, *mut usize) -> UcsStatus;
    ucp_rkey_buffer_release: fn(*mut c_void);
    ucp_get_nbx: fn(UcpEndpoint, *mut c_void, usize, u64, UcpRemoteKey, *const RequestParam) -> UcpRequest;
    ucp_request_check_status: fn(UcpRequest) -> UcsStatus;
    ucp_request_free: fn(UcpRequest);
    ucs_status_string: fn(UcsStatus) -> *const c_char;
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Api")
    }
}

impl Api {
    /// Loads a library; the error says why it cannot be used.
    pub(super) fn load(name: &str) -> Result<Self, String> {
        // SAFETY: UCX's initialisers may run in any thread; the path comes from this program or
        // from a test.
        let library = unsafe { Library::new(name) };
        let api = Self::of(library.map_err(|error| format!("{name} cannot be loaded: {error}"))?)?;
        let (mut major, mut minor, mut release) = (0, 0, 0);
        // SAFETY: writes three numbers.
        unsafe { (api.ucp_get_version)(&raw mut major, &raw mut minor, &raw mut release) };
        check_version((major, minor))?;
        Ok(api)
    }

    /// The API's version, as `ucp_init_version` wants it.
    pub(super) fn version() -> (c_uint, c_uint) {
        API
    }

    /// An error if the status is one.
    pub(super) fn check(&self, what: &str, status: UcsStatus) -> Result<(), String> {
        if status >= OK {
            return Ok(());
        }
        // SAFETY: returns a constant string for any status.
        let text = unsafe { CStr::from_ptr((self.ucs_status_string)(status)) };
        Err(format!("{what}: {}", text.to_string_lossy()))
    }

    /// Names of the transports of an endpoint.
    pub(super) fn transports(&self, endpoint: UcpEndpoint) -> Result<Vec<String>, String> {
        let none = TransportEntry { transport: std::ptr::null(), device: std::ptr::null() };
        let mut entries = [none; 64];
        let mut attributes = EndpointAttributes {
            field_mask: EP_TRANSPORTS,
            names_and_addresses: [0; 36],
            entries: entries.as_mut_ptr(),
            count: entries.len() as c_uint,
            entry_size: size_of::<TransportEntry>(),
            user_data: std::ptr::null_mut(),
        };
        // SAFETY: the endpoint is open; entries are written up to their number.
        let status = unsafe { (self.ucp_ep_query)(endpoint, &raw mut attributes) };
        self.check("ucp_ep_query", status)?;
        let found = &entries[..(attributes.count as usize).min(entries.len())];
        let mut names: Vec<String> = found
            .iter()
            .filter(|entry| !entry.transport.is_null())
            // SAFETY: names are strings that live as long as the library.
            .map(|entry| unsafe { CStr::from_ptr(entry.transport) }.to_string_lossy().into_owned())
            .collect();
        names.sort();
        names.dedup();
        Ok(names)
    }
}

/// The status of what a call has returned: a request is in progress.
pub(super) fn status_of(request: UcpRequest) -> UcsStatus {
    let number = request as isize;
    if (LAST_ERROR..=0).contains(&number) { number as UcsStatus } else { IN_PROGRESS }
}

/// Whether a library of this version can be used.
fn check_version((major, minor): (c_uint, c_uint)) -> Result<(), String> {
    if major == API.0 && minor >= API.1 {
        return Ok(());
    }
    Err(format!(
        "{LIBRARY} has version {major}.{minor} (expected {}.{} or a later {}.x)",
        API.0, API.1, API.0
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_versions_that_provide_the_api_are_used() {
        for version in [(1, 14), (1, 22)] {
            assert_eq!(check_version(version), Ok(()));
        }
        for version in [(1, 13), (1, 0), (2, 0), (0, 99)] {
            assert!(check_version(version).unwrap_err().contains("expected 1.14"));
        }
    }

    #[test]
    fn a_library_that_is_missing_or_another_one_is_refused_with_a_reason() {
        let missing = Api::load("libforebay-no-such.so.0").unwrap_err();
        assert!(missing.contains("cannot be loaded"), "{missing}");
        let other = Api::load("libc.so.6").unwrap_err();
        assert_eq!(other, "libucp.so.0 lacks ucp_get_version");
    }

    #[test]
    fn a_returned_pointer_is_a_status_or_a_request() {
        assert_eq!(status_of(std::ptr::null_mut()), OK);
        assert_eq!(status_of(-15_isize as UcpRequest), BUSY);
        assert_eq!(status_of(-101_isize as UcpRequest), IN_PROGRESS);
        assert_eq!(status_of(0x7000_0000_0000_usize as UcpRequest), IN_PROGRESS);
    }
}
