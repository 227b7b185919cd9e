//! Which server holds which bytes of a file.
//!
//! A file is dealt out in stripes, round robin, over `stripe_count` servers; the first one follows from the file's number, so that
//! files made one after the other begin on servers one after the other. What a server holds of a file is one object, without holes.
use crate::model::{FileId, ServerId};
use crate::spec::Spec;

/// How one file lies on the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    targets: u32,
    stripe_bytes: u64,
    stripe_count: u32,
    first: u32,
}

/// Consecutive bytes of a file on one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Who holds them.
    pub server: ServerId,
    /// Where they begin in the file \[B\].
    pub offset: u64,
    /// Where they begin in the server's object \[B\].
    pub object_offset: u64,
    /// How many \[B\].
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

    /// The server and the place in its object of one byte.
    pub fn locate(&self, offset: u64) -> (ServerId, u64) {
        let stripe = offset / self.stripe_bytes;
        let column = (stripe % u64::from(self.stripe_count)) as u32;
        let row = stripe / u64::from(self.stripe_count);
        let server = (u64::from(self.first) + u64::from(column)) % u64::from(self.targets);
        (ServerId(server as u32), row * self.stripe_bytes + offset % self.stripe_bytes)
    }

    /// Cuts a range at stripe edges, and after every `most_bytes`, in file order.
    ///
    /// A range that reaches beyond what an offset can say ends there.
    pub fn cut(self, offset: u64, length: u64, most_bytes: u64) -> impl Iterator<Item = Stretch> {
        let end = offset.saturating_add(length);
        let mut at = offset;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let (server, object_offset) = self.locate(at);
            let bytes = (self.stripe_bytes - at % self.stripe_bytes).min(most_bytes).min(end - at);
            let stretch = Stretch { server, offset: at, object_offset, bytes };
            at += bytes;
            Some(stretch)
        })
    }
}
