//! What was decided about the order, finding and reading, in words.

use forebay_io::ShardFiles;
use forebay_plan::config::{AccessChoice, Budget, Locate, Mapping, Settings};
use forebay_plan::{Kind, Order};

use super::{KIB, MIB};
use crate::config::options::Options;

/// Adds a line on the order, and on the epochs that will be asked for.
pub(super) fn explain_order(options: &Options, order: &Order, kind: Kind, reasons: &mut Vec<String>) {
    if let Kind::Group { samples, window } = kind {
        reasons.push(format!(
            "order: groups of {samples} samples, shuffled in windows of {window}, in {} lanes; the same stream on {} ranks",
            order.lanes(),
            order.allowed_ranks().iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
        ));
    } else {
        reasons.push(format!("order: {}", options.order.kind));
    }
    if let Some(epochs) = options.epochs {
        reasons.push(format!("epochs: {epochs} will be asked for, and nothing is read ahead beyond them"));
    }
}

/// Adds lines on how storage is touched.
pub(super) fn explain_access(
    options: &Options,
    settings: &Settings,
    files: &ShardFiles,
    reasons: &mut Vec<String>,
) {
    let Settings { access, direct, mapping, .. } = *settings;
    if options.direct == Some(true) && !direct {
        let why = files.direct_refused().unwrap_or("this file system refuses O_DIRECT");
        reasons.push(format!("direct: {why}; reads go through the page cache"));
    }
    reasons.push(match (options.access, mapping == Mapping::Resident) {
        (AccessChoice::Auto, true) => {
            "access: the file is local and in the page cache, so every rank copies its samples from a mapping of it; what \
             is missing there is read by pread"
                .into()
        }
        (AccessChoice::Auto, false) => format!(
            "access: {} ({}{}){}",
            if access == AccessChoice::IoUring { "io_uring" } else { "pread" },
            files.file_system_name(),
            if direct { ", around the page cache: the data set is larger than half the memory" } else { "" },
            if mapping == Mapping::Cold { "; what is found in the page cache later is copied from a mapping" } else { "" },
        ),
        (choice, _) => format!("access: {}, as asked", choice.name()),
    });
}

/// Adds lines on what the memory is taken for.
pub(super) fn explain_memory(settings: &Settings, budget: &Budget, reasons: &mut Vec<String>) {
    if settings.on_loan {
        reasons.push(format!(
            "memory: other loaders of this process have reserved the {} MiB that they share, so this one is made on loan: it \
             takes memory while it is iterated, from loaders that are between epochs or not iterated",
            budget.asked_bytes / MIB
        ));
    }
    let region = &settings.region;
    let staging = match region.staging_bytes {
        0 => "no staging blocks".into(),
        bytes => format!("{} MiB of staging blocks", bytes / MIB),
    };
    reasons.push(format!(
        "memory: {} MiB of {} MiB on this node: {staging}, {} batch buffers of {} KiB for each of {} rank(s)",
        settings.region_bytes / MIB,
        settings.memory_bytes / MIB,
        region.buffers,
        region.buffer_bytes / KIB,
        region.ranks,
    ));
}

/// Adds lines on finding, reading, turns and checks.
pub(super) fn explain_reading(
    options: &Options,
    settings: &Settings,
    kind: Kind,
    has_checksums: bool,
    reasons: &mut Vec<String>,
) {
    let grouped = matches!(kind, Kind::Group { .. });
    let (alone, roots, readers) =
        (settings.mode.is_alone(), settings.mode.has_roots(), settings.region.readers);
    let (read_bytes, gap_bytes) = (settings.limits.max_read_bytes, settings.limits.gap_bytes);
    let ranks = options.local_ranks.len();
    match options.locate {
        Locate::Cursor if alone => reasons.push(
            "locate: every rank walks from record to record by itself and copies from its own mapping; a page that is \
             missing is a page fault"
                .into(),
        ),
        Locate::Cursor => reasons.push(format!(
            "locate: {readers} root(s) of this node walk from record to record through a mapping and tell the other ranks \
             what they find"
        )),
        Locate::Handoff => reasons.push(format!(
            "locate: one root of the job walks at a time and hands its cursor to the next one, which meanwhile asks for the pages \
             that it will need, on a guess{}",
            match options.links {
                Some(_) => "",
                None if ranks == options.size as usize => "; on one node the only root goes on by itself",
                None => "; the nodes are not linked, so every root goes on by itself, over the records of the others",
            }
        )),
        Locate::Index | Locate::Scan | Locate::Provenance => {}
    }
    reasons.push(if alone {
        "reads: none ahead of time or for other ranks, so there are no readers".into()
    } else {
        format!(
            "reads: up to {} KiB, joined over gaps of {} KiB, by {readers} reader(s) on this node{}",
            read_bytes / KIB,
            gap_bytes / KIB,
            if roots { ", which alone touch storage" } else { "" },
        )
    });
    if let Some(buffers) = options.prefetch_windows {
        let what = if grouped { "window(s) of each lane" } else { "piece(s) of what is read at once" };
        reasons.push(format!("prefetch windows: {buffers} {what}, as asked"));
    }
    match options.coalesce {
        Some(_) if grouped => reasons
            .push("coalesce: the order group is read a window at a time, whatever coalesce= says".into()),
        Some(steps) => reasons.push(format!("coalesce: a read spans up to {steps} step(s), as asked")),
        None => {}
    }
    if let Some(groups) = options.stagger {
        let groups = if groups == 0 {
            "as many groups as is measured to be best".into()
        } else {
            format!("{groups} group(s)")
        };
        reasons.push(match options.links {
            Some(_) => format!("stagger: the nodes take turns in {groups}"),
            None if ranks == options.size as usize => {
                "stagger: changes nothing, as there is one node, which has nobody to take turns with".into()
            }
            None => "stagger: changes nothing, as the nodes are not linked".into(),
        });
    }
    if options.checksums {
        reasons.push(if has_checksums {
            "checksums: that of every record is computed, as asked".into()
        } else {
            "checksums: the format has none of single records, or its codecs check them always".into()
        });
    }
}
