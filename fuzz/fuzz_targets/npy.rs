//! Any bytes as an npy file or as an npz archive: an error, or arrays that lie within the file and apart.
#![no_main]

use std::path::Path;
use std::sync::Arc;

use forebay_format::SampleAxis;
use forebay_format::file::Input;
use forebay_format::npy::Arrays;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let axes = [SampleAxis::First, SampleAxis::File];
    for (open, axis) in [Arrays::npy, Arrays::npz].into_iter().flat_map(|open| axes.map(|axis| (open, axis))) {
        let input = Input::from_source(Path::new("memory"), Arc::new(data.to_vec())).expect("a size");
        let Ok(arrays) = open(input, &[], axis) else { continue };
        let mut places: Vec<_> =
            arrays.fields().iter().map(|(_, array)| (array.start, array.start + array.bytes())).collect();
        places.sort_unstable();
        assert!(places.iter().all(|(start, end)| start < end && *end <= data.len() as u64));
        assert!(places.windows(2).all(|pair| pair[0].1 <= pair[1].0));
        arrays.check_unchanged().expect("the same bytes");
    }
});
