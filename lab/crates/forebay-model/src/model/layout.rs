//! Which server holds which bytes of a file.
//!
//! A file is striped round robin over `stripe_count` servers. The file's number selects the first
//! one, so that consecutive files begin on consecutive servers. What one server holds of a file is
//! one object without holes.
use crate::ids::{FileId, ServerId};
use crate::spec::Spec;

/// Where the bytes of one file lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    targets: u32,
    stripe_bytes: u64,
    stripe_count: u32,
    first: u32,
}

/// Consecutive bytes of a file on one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeExtent {
    /// The server that holds them.
    pub server: ServerId,
    /// Offset in the file \[B\].
    pub offset: u64,
    /// Offset in the server's object \[B\].
    pub object_offset: u64,
    /// Length \[B\].
    pub bytes: u64,
}

impl Layout {
    /// The layout of a file.
    pub fn of(spec: &Spec, file: FileId) -> Layout {
        Layout {
            targets: spec.targets,
            stripe_bytes: spec.stripe_bytes,
            stripe_count: spec.stripe_count,
            first: (file.0 % u64::from(spec.targets)) as u32,
        }
    }

    /// The server that holds the byte at `offset`, and the byte's offset in the server's object.
    pub fn locate(&self, offset: u64) -> (ServerId, u64) {
        let stripe = offset / self.stripe_bytes;
        let column = (stripe % u64::from(self.stripe_count)) as u32;
        let row = stripe / u64::from(self.stripe_count);
        let server = (u64::from(self.first) + u64::from(column)) % u64::from(self.targets);
        (ServerId(server as u32), row * self.stripe_bytes + offset % self.stripe_bytes)
    }

    /// Splits a range at stripe edges and after every `max_bytes`, in file order.
    ///
    /// A range that would pass the largest offset ends there.
    pub fn split(self, offset: u64, length: u64, max_bytes: u64) -> impl Iterator<Item = StripeExtent> {
        let end = offset.saturating_add(length);
        let mut at = offset;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let (server, object_offset) = self.locate(at);
            let bytes = (self.stripe_bytes - at % self.stripe_bytes).min(max_bytes).min(end - at);
            let extent = StripeExtent { server, offset: at, object_offset, bytes };
            at += bytes;
            Some(extent)
        })
    }
}
