//! The limit on open files.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Lets this process open `wanted` files at once; false where its hard limit is lower.
///
/// Every user may raise the soft limit up to the hard one. It is never lowered.
pub fn allow_open_files(wanted: u64) -> bool {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return true;
    }
    let allowed = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(allowed), ..limit });
    raised.is_ok() && allowed == wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_is_raised_up_to_the_hard_one_and_never_lowered() {
        let before = getrlimit(Resource::Nofile);
        let Some(current) = before.current else { return };
        assert!(allow_open_files(current));
        assert_eq!(getrlimit(Resource::Nofile), before);
        let (Some(maximum), true) = (before.maximum, before.maximum > before.current) else { return };
        assert!(allow_open_files(current + 1));
        assert_eq!(getrlimit(Resource::Nofile).current, Some(current + 1));
        assert!(!allow_open_files(maximum + 1));
        assert_eq!(getrlimit(Resource::Nofile), Rlimit { current: Some(maximum), maximum: Some(maximum) });
    }
}
