//! Images per second of the decoder alone: `throughput FOLDER THREADS ROUNDS`. Each thread decodes
//! every image of the folder to 224 x 224 pixels of a random crop, from memory.

use std::time::Instant;
use std::{env, fs, thread};

use forebay_image::{ImageDecoder, ImageSpec, Mode, PixelLayout, PixelType, Resize, SampleKey};

fn main() {
    let arguments: Vec<String> = env::args().collect();
    let [_, folder, threads, rounds] = &arguments[..] else { panic!("throughput FOLDER THREADS ROUNDS") };
    let number = |text: &String| text.parse::<u64>().expect("a number");
    let (threads, rounds) = (number(threads), number(rounds));
    let entries = fs::read_dir(folder).expect("a folder");
    let images: Vec<Vec<u8>> =
        entries.map(|entry| fs::read(entry.expect("an entry").path()).expect("a file")).collect();
    let spec = ImageSpec {
        height: 224,
        width: 224,
        mode: Mode::Rgb,
        layout: PixelLayout::Hwc,
        resize: Resize::RandomCrop { scale: [0.08, 1.0], ratio: [0.75, 4.0 / 3.0] },
        flip: true,
        dtype: PixelType::Uint8,
        mean: None,
        std: None,
    };
    let best = (0..rounds).map(|round| {
        let begun = Instant::now();
        thread::scope(|scope| {
            for thread in 0..threads {
                let images = &images;
                let decode = move || {
                    let (mut decoder, mut out) = (ImageDecoder::default(), vec![0; spec.bytes()]);
                    for (sample, image) in images.iter().enumerate() {
                        let key = SampleKey { seed: thread, epoch: round, sample: sample as u64 };
                        decoder.decode(image, &spec, key, &mut out).expect("an image");
                    }
                };
                thread::Builder::new().spawn_scoped(scope, decode).expect("a thread");
            }
        });
        (threads * images.len() as u64) as f64 / begun.elapsed().as_secs_f64()
    });
    println!("{:.0}", best.fold(0.0, f64::max));
}
