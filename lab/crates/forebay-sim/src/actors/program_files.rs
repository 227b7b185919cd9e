//! Files that programs have open: of the source, or copies of them. Which of both is decided at the
//! open, and stays.

use forebay_model::{AccessMethod, ClientAccess, FileId, Kernel, ModelTime, OpenFile};

use crate::world::World;

/// A file that a process of a program has open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgramFile {
    /// The tier of the copy; none: the source.
    level: Option<u8>,
    /// None: a copy in memory.
    open: Option<OpenFile>,
}

impl World<'_> {
    /// A process of a program opens a file.
    pub(crate) fn open_of_program(&mut self, kernel: &mut Kernel, node: usize, shard: u32) -> ProgramFile {
        let (file, bytes) = (FileId(shard.into()), self.places.bytes_of_file(shard.into()));
        let level = self.runs.get_mut(node).and_then(|run| run.open(shard, bytes, kernel));
        let open = match level {
            None => Some(self.storage.client(self.nodes[node].id).open(file, bytes)),
            Some(level) => {
                let storage = &mut self.runs[node].levels[usize::from(level)].storage;
                storage.as_mut().map(|(files, node)| files.client(*node).open(file, bytes))
            }
        };
        ProgramFile { level, open }
    }

    /// When a program goes on that has opened a file: it asks the source, unless the file is known
    /// to be unchanged, and then opens the copy.
    pub(crate) fn open_time(&mut self, now: ModelTime, node: usize, file: &ProgramFile) -> ModelTime {
        let asks_source = file.level.is_none() || !self.runs[node].options.frozen;
        let asked = if asks_source { self.storage.model().metadata(now, self.nodes[node].id) } else { now };
        let Some(level) = file.level else { return asked };
        match &mut self.runs[node].levels[usize::from(level)].storage {
            Some((files, node)) => files.model().metadata(asked, *node),
            None => asked,
        }
    }

    /// Begins an access of a program, and counts it for an epoch; `None` for one that is answered
    /// from memory.
    pub(crate) fn begin_program_access(
        &mut self,
        node: usize,
        file: &ProgramFile,
        (offset, length): (u64, u64),
        how: AccessMethod,
        epoch: u64,
    ) -> Option<ClientAccess> {
        if !self.runs.is_empty() {
            let counted = self.nodes[node].levels.entry(epoch).or_default();
            match file.level {
                None => counted.source += length,
                Some(level) => counted.add_to_tier(usize::from(level), length),
            }
        }
        let open = file.open?;
        match file.level {
            None => Some(self.storage.client(self.nodes[node].id).access(open, offset, length, how)),
            Some(level) => {
                let (files, node) = self.runs[node].levels[usize::from(level)].storage.as_mut()?;
                Some(files.client(*node).access(open, offset, length, how))
            }
        }
    }

    /// Goes on with an access; returns until when it waits, or `None` once it is answered.
    pub(crate) fn advance_program_access(
        &mut self,
        now: ModelTime,
        node: usize,
        file: &ProgramFile,
        access: &mut ClientAccess,
    ) -> Option<ModelTime> {
        match file.level {
            None => self.storage.advance(now, self.nodes[node].id, access),
            Some(level) => {
                let (files, node) = self.runs[node].levels[usize::from(level)].storage.as_mut()?;
                files.advance(now, *node, access)
            }
        }
    }
}
