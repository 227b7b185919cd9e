//! The data of a read: from the mapping of the file if that holds them, else through a buffer.
use std::cell::RefCell;
use std::io;
use std::sync::Arc;

use fuser::ReplyData;

use crate::context::Context;
use crate::files::backing::{errno, error_number, read_full};
use crate::locks::read_locked;
use crate::mount::{Handle, Mount};
use crate::timing::reply_scheduler::DataReply;

thread_local! {
    /// Data of replies that are sent immediately.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A read that waits for its due time.
pub(crate) struct ReadReply {
    pub(crate) mount: Arc<Mount>,
    pub(crate) context: Arc<Context>,
    pub(crate) handle: Arc<Handle>,
    pub(crate) offset: u64,
    pub(crate) length: usize,
    /// Whether the reply is EIO.
    pub(crate) failed: bool,
    pub(crate) reply: ReplyData,
}

impl DataReply for ReadReply {
    fn prepare(&mut self) -> bool {
        let Handle { mapping, descriptor, .. } = &*self.handle;
        let served = !self.failed && mapping.serves(descriptor, self.offset, self.length);
        if served {
            mapping.populate(self.offset, self.length);
        }
        served
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.failed {
            return Err(error_number(libc::EIO));
        }
        read_full(&self.handle.descriptor, &mut buffer[..self.length], self.offset)
    }

    fn length(&self) -> usize {
        self.length
    }

    fn send(self: Box<Self>, data: io::Result<Option<&[u8]>>) {
        // Before the reply: the program may query the counters as soon as it has the reply.
        self.mount.in_flight.leave();
        self.context.in_flight.leave();
        match self.mount.check_serving().and(data) {
            Ok(Some(data)) => self.reply.data(data),
            Ok(None) => send_mapped(&self.context, &self.handle, self.offset, self.length, self.reply),
            Err(error) => self.reply.error(errno(&error)),
        }
    }
}

/// Clips a read to the current end of the file; returns its length.
pub(crate) fn clip(handle: &Handle, offset: u64, length: u64) -> io::Result<u64> {
    let end = rustix::fs::fstat(&handle.descriptor)?.st_size as u64;
    Ok(length.min(end.saturating_sub(offset)))
}

/// Answers a read immediately.
pub(crate) fn send_now(context: &Context, handle: &Handle, offset: u64, length: usize, reply: ReplyData) {
    if handle.mapping.serves(&handle.descriptor, offset, length) {
        return send_mapped(context, handle, offset, length, reply);
    }
    BUFFER.with_borrow_mut(|buffer| {
        if buffer.len() < length {
            buffer.resize(length, 0);
        }
        match read_full(&handle.descriptor, &mut buffer[..length], offset) {
            Ok(count) => reply.data(&buffer[..count]),
            Err(error) => reply.error(errno(&error)),
        }
    });
}

/// Sends a range of the mapping, clipped to the current end of the file.
fn send_mapped(context: &Context, handle: &Handle, offset: u64, length: usize, reply: ReplyData) {
    let _not_truncated = read_locked(&context.sizes);
    match clip(handle, offset, length as u64) {
        Ok(length) => reply.data(handle.mapping.bytes(offset, length as usize).unwrap_or_default()),
        Err(error) => reply.error(errno(&error)),
    }
}
