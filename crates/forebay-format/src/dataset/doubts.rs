//! What may make a dataset another one than the user expects: warnings for each time it is opened,
//! most of which its index gives rise to.

use std::collections::HashSet;

use super::Dataset;
use crate::container::folder::SYMBOLIC_LINKS;
use crate::{Format, Index};

impl Dataset {
    /// A warning for each reading of the files that may not be meant.
    #[must_use]
    pub fn doubts(&self, index: &Index) -> Vec<String> {
        [self.sample_axis_doubt(index), self.skipped_links(index)].into_iter().flatten().collect()
    }

    /// A warning of files that were given more than once, also under different names.
    #[must_use]
    pub fn repeated_files(&self) -> Option<String> {
        let mut seen = HashSet::new();
        let repeated: Vec<_> = self.shards.iter().filter(|shard| !seen.insert(shard.inode)).collect();
        let first = repeated.first()?;
        let others = match repeated.len() {
            1 => String::new(),
            more => format!(" and {} more", more - 1),
        };
        Some(format!(
            "{}{others}: given more than once, so each epoch has the samples more than once\nhint: give each file once; \
             order=forebay.Weighted(...) and forebay.mix(..., weights=) repeat samples",
            first.path.display(),
        ))
    }

    /// Files behind symbolic links of a folder, which other loaders follow.
    fn skipped_links(&self, index: &Index) -> Option<String> {
        if self.format != Format::Folder {
            return None;
        }
        let links = index.summary().excluded.get(SYMBOLIC_LINKS)?;
        let path = self.shards[0].path.display();
        if self.options.follow_symlinks {
            return Some(format!("{path}: {links} {SYMBOLIC_LINKS} skipped: they lead nowhere"));
        }
        Some(format!(
            "{path}: {links} {SYMBOLIC_LINKS} skipped: they are not followed, so what they point to is not in the dataset\nhint: \
             pass the directories that they point to, copy the files (cp -rL), or follow links with follow_symlinks=True",
        ))
    }
}
