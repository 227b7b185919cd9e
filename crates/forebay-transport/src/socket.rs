//! What both sides do with sockets: options, vectored sends and receives.
//!
//! All sockets are non-blocking. Buffers are left to the kernel, which grows them with the rate; a
//! size set by hand turns that off (tcp(7)). `TCP_USER_TIMEOUT` is not set: it also ends the
//! connection to a rank that reads nothing for a while, because it computes or is stopped in a
//! debugger. Keepalive finds dead hosts on idle connections; a client that waits asks the kernel
//! whether its requests were acknowledged (`link.rs`).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use forebay_host::fork;
use rustix::io::Errno;
use rustix::net::sockopt;

/// Most parts of one system call (`IOV_MAX`).
pub(crate) const MAX_PARTS: usize = 1024;

/// Sets up a connected TCP socket.
pub(crate) fn prepare(socket: BorrowedFd<'_>) -> io::Result<()> {
    // Requests and answers are written whole: nothing is gained by waiting for more.
    sockopt::set_tcp_nodelay(socket, true)?;
    // A host that does not answer on an idle connection is found after 6 s.
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, Duration::from_secs(2))?;
    sockopt::set_tcp_keepintvl(socket, Duration::from_secs(1))?;
    sockopt::set_tcp_keepcnt(socket, 4)?;
    Ok(())
}

/// A socket of a client. Forked children close it: they would keep the connection open after this
/// process has ended.
#[derive(Debug)]
pub(crate) struct Socket {
    /// Dropped before the socket, so that no child closes a reused descriptor.
    _fork: fork::ClosedInChild,
    socket: OwnedFd,
}

impl From<OwnedFd> for Socket {
    fn from(socket: OwnedFd) -> Self {
        Self { _fork: fork::ClosedInChild::new(socket.as_raw_fd()), socket }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A part of memory that a system call reads or writes.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Part(libc::iovec);

// SAFETY: a part is an address and a length; each use of them is justified where it happens.
unsafe impl Send for Part {}

impl Part {
    /// Memory that is sent.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self(libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() })
    }

    /// Memory that is received into.
    pub(crate) fn at(start: *mut u8, length: usize) -> Self {
        Self(libc::iovec { iov_base: start.cast(), iov_len: length })
    }

    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.0.iov_base.cast()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.iov_len
    }
}

/// Sends `parts`, without SIGPIPE; `None` if the socket accepts nothing now.
///
/// # Safety
/// All parts must be valid for reads.
pub(crate) unsafe fn send(socket: impl AsFd, parts: &[Part]) -> io::Result<Option<usize>> {
    retry(|| {
        // SAFETY: all zeros is a valid message header: no address, no parts, no control data.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.as_ptr().cast_mut().cast();
        message.msg_iovlen = parts.len().min(MAX_PARTS) as _;
        // SAFETY: the header has valid parts (the caller promises) and lives during the call.
        unsafe { libc::sendmsg(socket.as_fd().as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) }
    })
}

/// Receives into `parts`; `Some(0)` at the end of the stream, `None` if nothing is there now.
///
/// # Safety
/// All parts must be valid for writes, and nothing else may use them.
pub(crate) unsafe fn receive(socket: impl AsFd, parts: &[Part]) -> io::Result<Option<usize>> {
    let count = parts.len().min(MAX_PARTS) as libc::c_int;
    // SAFETY: the caller promises that the parts are valid; `Part` has the layout of an iovec.
    retry(|| unsafe { libc::readv(socket.as_fd().as_raw_fd(), parts.as_ptr().cast(), count) })
}

/// Sets how many bytes must have arrived before `poll` reports them (`SO_RCVLOWAT`). The kernel
/// makes the buffer large enough.
pub(crate) fn set_low_water(socket: impl AsFd, bytes: usize) -> io::Result<()> {
    let bytes = bytes as libc::c_int;
    // SAFETY: the option takes an int, which lives during the call.
    let set = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            (&raw const bytes).cast(),
            size_of_val(&bytes) as libc::socklen_t,
        )
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// How long the other host has acknowledged nothing, if segments are on their way to it.
///
/// A full window of the receiver does not count: nothing is on its way then.
pub(crate) fn unacknowledged(socket: impl AsFd) -> Option<Duration> {
    // SAFETY: all zeros is a valid value of this struct of integers.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut bytes = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the kernel writes at most `bytes` bytes to the struct, which lives during the call.
    let asked = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut bytes,
        )
    };
    let is_known = asked == 0 && info.tcpi_unacked > 0;
    is_known.then(|| Duration::from_millis(info.tcpi_last_ack_recv.into()))
}

/// Sends bytes; `None` if the socket accepts nothing now.
pub(crate) fn send_bytes(socket: impl AsFd, bytes: &[u8]) -> io::Result<Option<usize>> {
    // SAFETY: a slice is valid for reads.
    unsafe { send(socket, &[Part::of(bytes)]) }
}

/// Receives bytes, as [`receive`].
pub(crate) fn receive_bytes(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<Option<usize>> {
    // SAFETY: an exclusive slice is valid for writes, and nothing else uses it.
    unsafe { receive(socket, &[Part::at(bytes.as_mut_ptr(), bytes.len())]) }
}

/// Repeats a system call that a signal interrupted.
fn retry(mut call: impl FnMut() -> isize) -> io::Result<Option<usize>> {
    loop {
        if let Ok(bytes) = usize::try_from(call()) {
            return Ok(Some(bytes));
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::INTR) => {}
            Some(Errno::AGAIN) => return Ok(None),
            _ => return Err(error),
        }
    }
}
