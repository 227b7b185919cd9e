//! The system calls of the library, past libc: they touch no `errno` and meet no hook.

use core::arch::asm;
use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use core::mem::MaybeUninit;

use crate::kernel::{FileStat, Kernel, Result};
use crate::stat;

/// Errors are the results from here to -1.
const MAX_ERRNO: c_long = 4095;

/// No program has memory in the first page.
const LOWEST_ADDRESS: usize = 4096;

/// Makes a system call; returns what the kernel returns, errors as negative numbers.
///
/// # Safety
///
/// As the system call says.
#[cfg(target_arch = "x86_64")]
pub unsafe fn raw(number: c_long, arguments: [usize; 6]) -> c_long {
    let [first, second, third, fourth, fifth, sixth] = arguments;
    let result;
    // SAFETY: the registers are those of the kernel's calling convention; the caller answers for
    // the call itself.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") first,
            in("rsi") second,
            in("rdx") third,
            in("r10") fourth,
            in("r8") fifth,
            in("r9") sixth,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// Makes a system call; returns what the kernel returns, errors as negative numbers.
///
/// # Safety
///
/// As the system call says.
#[cfg(target_arch = "aarch64")]
pub unsafe fn raw(number: c_long, arguments: [usize; 6]) -> c_long {
    let [first, second, third, fourth, fifth, sixth] = arguments;
    let result;
    // SAFETY: the registers are those of the kernel's calling convention; the caller answers for
    // the call itself.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") first => result,
            in("x1") second,
            in("x2") third,
            in("x3") fourth,
            in("x4") fifth,
            in("x5") sixth,
            options(nostack),
        );
    }
    result
}

/// Makes a system call.
///
/// # Safety
///
/// As the system call says.
unsafe fn call(number: c_long, arguments: [usize; 6]) -> Result<usize> {
    // SAFETY: the caller's.
    let result = unsafe { raw(number, arguments) };
    if (-MAX_ERRNO..0).contains(&result) { Err(-result as c_int) } else { Ok(result as usize) }
}

/// A descriptor, which may be `AT_FDCWD`, as an argument.
fn descriptor(fd: c_int) -> usize {
    fd as isize as usize
}

/// The kernel that runs this program.
pub struct Linux;

impl Linux {
    /// Maps a whole file for reading and writing.
    pub fn map(fd: c_int, bytes: usize) -> Result<*mut c_void> {
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        let arguments = [0, bytes, protection, libc::MAP_SHARED as usize, descriptor(fd), 0];
        // SAFETY: a new mapping, at a place that the kernel chooses.
        unsafe { call(libc::SYS_mmap, arguments) }.map(|address| address as *mut c_void)
    }

    /// Makes the first bytes of a mapping read-only.
    ///
    /// # Safety
    ///
    /// Nobody writes there any more.
    pub unsafe fn protect(address: *mut c_void, bytes: usize) -> Result<()> {
        let arguments = [address as usize, bytes, libc::PROT_READ as usize, 0, 0, 0];
        // SAFETY: the caller's.
        unsafe { call(libc::SYS_mprotect, arguments) }.map(drop)
    }

    /// Removes a mapping.
    ///
    /// # Safety
    ///
    /// Nobody uses it any more.
    pub unsafe fn unmap(address: *mut c_void, bytes: usize) {
        // SAFETY: the caller's.
        let _ = unsafe { call(libc::SYS_munmap, [address as usize, bytes, 0, 0, 0, 0]) };
    }

    /// A number of this process.
    pub fn process() -> usize {
        // SAFETY: getpid(2) has no conditions.
        unsafe { call(libc::SYS_getpid, [0; 6]) }.unwrap_or(0)
    }

    /// The effective user.
    pub fn user() -> u32 {
        // SAFETY: geteuid(2) has no conditions.
        unsafe { call(libc::SYS_geteuid, [0; 6]) }.unwrap_or(0) as u32
    }

    /// Whether the program may read the 8 bytes around an address: `rt_sigprocmask(2)` reads a new
    /// mask before it finds that it does not know what to do with it.
    pub fn is_readable(address: usize) -> bool {
        const NO_ACTION: usize = !0;
        let arguments = [NO_ACTION, address & !7, 0, 8, 0, 0];
        // SAFETY: the call fails, one way or the other.
        let result = unsafe { call(libc::SYS_rt_sigprocmask, arguments) };
        // It takes 0 for no mask.
        address >= LOWEST_ADDRESS && result != Err(libc::EFAULT)
    }

    /// Whether the program may write 8 bytes at an address. Changes them.
    ///
    /// # Safety
    ///
    /// The program wants them written.
    pub unsafe fn is_writable(address: usize) -> bool {
        // SAFETY: the present mask is written there, if it may be.
        let result = unsafe { call(libc::SYS_rt_sigprocmask, [0, 0, address, 8, 0, 0]) };
        address >= LOWEST_ADDRESS && result != Err(libc::EFAULT)
    }

    /// Reads the beginning of a file.
    pub fn read_file<'a>(path: &CStr, into: &'a mut [u8]) -> Result<&'a [u8]> {
        let fd = Linux.open(path, libc::O_RDONLY | libc::O_CLOEXEC)?;
        let arguments = [descriptor(fd), into.as_mut_ptr() as usize, into.len(), 0, 0, 0];
        // SAFETY: `into` takes as many bytes as the call is told.
        let read = unsafe { call(libc::SYS_read, arguments) };
        Linux.close(fd);
        into.get(..read?).ok_or(libc::EIO)
    }

    /// The owner of an open file.
    pub fn owner(fd: c_int) -> Result<u32> {
        Self::whole_stat(fd, c"", libc::AT_EMPTY_PATH).map(|found| found.st_uid)
    }

    /// newfstatat(2), of a path as the program gave it.
    pub fn stat_at(directory: c_int, path: *const c_char, flags: c_int) -> Result<FileStat> {
        Self::raw_stat(directory, path, flags).map(|found| file_stat(&found))
    }

    fn whole_stat(directory: c_int, path: &CStr, flags: c_int) -> Result<libc::stat> {
        Self::raw_stat(directory, path.as_ptr(), flags)
    }

    fn raw_stat(directory: c_int, path: *const c_char, flags: c_int) -> Result<libc::stat> {
        let mut found = MaybeUninit::<libc::stat>::uninit();
        let place = found.as_mut_ptr() as usize;
        let arguments = [descriptor(directory), path as usize, place, flags as usize, 0, 0];
        // SAFETY: the kernel checks the path; its `stat` has the layout of libc's here.
        unsafe { call(libc::SYS_newfstatat, arguments) }?;
        // SAFETY: the call succeeded, so it is filled.
        Ok(unsafe { found.assume_init() })
    }
}

fn file_stat(found: &libc::stat) -> FileStat {
    FileStat {
        identity: stat::identity(found),
        is_regular: stat::is_regular(found.st_mode),
        is_deleted: found.st_nlink == 0,
    }
}

impl Kernel for Linux {
    fn stat(&self, fd: c_int) -> Result<FileStat> {
        #[cfg(target_arch = "x86_64")]
        {
            // Shorter than with an empty path.
            let mut found = MaybeUninit::<libc::stat>::uninit();
            let place = found.as_mut_ptr() as usize;
            // SAFETY: the kernel's `stat` has the layout of libc's here.
            unsafe { call(libc::SYS_fstat, [descriptor(fd), place, 0, 0, 0, 0]) }?;
            // SAFETY: the call succeeded, so it is filled.
            Ok(file_stat(&unsafe { found.assume_init() }))
        }
        #[cfg(not(target_arch = "x86_64"))]
        Self::whole_stat(fd, c"", libc::AT_EMPTY_PATH).map(|found| file_stat(&found))
    }

    fn stat_path(&self, path: &CStr) -> Result<FileStat> {
        Self::whole_stat(libc::AT_FDCWD, path, 0).map(|found| file_stat(&found))
    }

    fn open(&self, path: &CStr, flags: c_int) -> Result<c_int> {
        let arguments = [descriptor(libc::AT_FDCWD), path.as_ptr() as usize, flags as usize, 0, 0, 0];
        // SAFETY: the path ends with a zero.
        unsafe { call(libc::SYS_openat, arguments) }.map(|fd| fd as c_int)
    }

    fn duplicate(&self, from: c_int, to: c_int, close_on_exec: bool) -> Result<()> {
        let flags = if close_on_exec { libc::O_CLOEXEC as usize } else { 0 };
        // SAFETY: `to` is what the program has just opened and not seen yet.
        unsafe { call(libc::SYS_dup3, [descriptor(from), descriptor(to), flags, 0, 0, 0]) }.map(drop)
    }

    fn close(&self, fd: c_int) {
        // SAFETY: the descriptor is ours.
        let _ = unsafe { call(libc::SYS_close, [descriptor(fd), 0, 0, 0, 0, 0]) };
    }

    fn path_of(&self, fd: c_int, into: &mut [u8]) -> Result<usize> {
        const DIRECTORY: &[u8] = b"/proc/self/fd/";
        let mut link = [0; 32];
        link[..DIRECTORY.len()].copy_from_slice(DIRECTORY);
        let mut digits = [0; 10];
        let mut first = digits.len();
        let mut rest = fd.unsigned_abs();
        while first == digits.len() || rest > 0 {
            first -= 1;
            digits[first] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        let digits = &digits[first..];
        link[DIRECTORY.len()..DIRECTORY.len() + digits.len()].copy_from_slice(digits);
        let (link, place) = (link.as_ptr() as usize, into.as_mut_ptr() as usize);
        // SAFETY: the path ends with a zero; `into` takes as many bytes as the call is told.
        unsafe { call(libc::SYS_readlinkat, [descriptor(libc::AT_FDCWD), link, place, into.len(), 0, 0]) }
    }
}
