//! Writes `TFRecord` and `RecordIO` files, and image records.

#![allow(dead_code, reason = "not every test file needs all of it")]

use forebay_format::{recordio, tfrecord};

/// A `TFRecord` file and where its headers are.
pub fn tfrecords(records: &[Vec<u8>]) -> (Vec<u8>, Vec<usize>) {
    let (mut file, mut headers) = (Vec::new(), Vec::new());
    for record in records {
        headers.push(file.len());
        let length = (record.len() as u64).to_le_bytes();
        file.extend(length);
        file.extend(tfrecord::masked_crc32c(&length).to_le_bytes());
        file.extend(record);
        file.extend(tfrecord::masked_crc32c(record).to_le_bytes());
    }
    (file, headers)
}

/// A `RecordIO` file and where its headers are; every third record is in parts.
pub fn recordios(records: &[Vec<u8>]) -> (Vec<u8>, Vec<usize>) {
    let (mut file, mut headers) = (Vec::new(), Vec::new());
    let mut part = |kind: u32, data: &[u8]| {
        headers.push(file.len());
        file.extend(recordio::MAGIC.to_le_bytes());
        file.extend((kind << 29 | data.len() as u32).to_le_bytes());
        file.extend(data);
        file.resize(file.len().next_multiple_of(4), 0);
    };
    for (number, record) in records.iter().enumerate() {
        if number % 3 == 0 && record.len() >= 16 {
            part(1, &record[..8]);
            part(2, &record[8..12]);
            part(3, &record[12..]);
        } else {
            part(0, record);
        }
    }
    (file, headers)
}

/// An image record: header, labels where there are several, image.
pub fn image_record(labels: &[f32], label: f32, id: u64, image: &[u8]) -> Vec<u8> {
    let mut out = (labels.len() as u32).to_le_bytes().to_vec();
    out.extend(label.to_le_bytes());
    out.extend(id.to_le_bytes());
    out.extend(0_u64.to_le_bytes());
    out.extend(labels.iter().flat_map(|label| label.to_le_bytes()));
    out.extend(image);
    out
}
