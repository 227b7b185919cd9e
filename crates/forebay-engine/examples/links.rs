//! One end of a link that is measured; `lab/studies/links` starts two of them, on two nodes.
//!
//! `links PLACE DIRECTORY`: the ends find each other by files in the directory. End 1 sends back
//! whatever comes; end 0 sends messages of several sizes, one after the other, and prints the
//! median times of a round trip as JSON.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_engine::mesh::{Channel, Links, LinksSpec, Listener, NodeFacts, Nodes, SECRET_BYTES, Secret};

/// Bytes of a message, and how many round trips are made with it.
const SIZES: [(usize, usize); 4] = [(8, 5000), (47, 5000), (4096, 2000), (8 << 20, 40)];
const WITHIN: Duration = Duration::from_secs(30);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [place, directory] = &arguments[..] else { panic!("usage: links PLACE DIRECTORY") };
    let own: usize = place.parse().expect("a place, 0 or 1");
    let links = connect(own, Path::new(directory));
    if own == 0 {
        lead(&links);
    } else {
        answer(&links);
    }
    links.close();
}

fn connect(own: usize, directory: &Path) -> Links {
    let listener = Listener::new(None).expect("a listener");
    let draft = directory.join(format!("draft.{own}"));
    std::fs::write(
        &draft,
        serde_json::to_string(listener.endpoint()).expect("an endpoint can be serialised"),
    )
    .expect("to write the endpoint");
    std::fs::rename(draft, directory.join(format!("endpoint.{own}"))).expect("to publish the endpoint");
    let begun = Instant::now();
    let endpoints = (0..2).map(|end| {
        loop {
            if let Ok(text) = std::fs::read_to_string(directory.join(format!("endpoint.{end}"))) {
                return serde_json::from_str(&text).expect("an endpoint");
            }
            assert!(begun.elapsed() < WITHIN, "end {end} does not come");
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let facts = |end: u32| NodeFacts { name: format!("node{end}"), ranks: vec![end], pids: vec![0] };
    let spec = LinksSpec {
        own_node: own,
        endpoints: endpoints.collect(),
        nodes: Nodes((0..2).map(facts).collect()),
        // Of nobody else's concern: both ends are ours.
        secret: Secret::new([7; SECRET_BYTES]),
    };
    Links::connect(&listener, &spec, "measured", "links", WITHIN, &mut || true).expect("a link")
}

fn lead(links: &Links) {
    let mut found = Vec::new();
    for (bytes, trips) in SIZES {
        let payload: Arc<[u8]> = vec![1; bytes].into();
        let mut times: Vec<Duration> = (0..trips)
            .map(|_| {
                let begun = Instant::now();
                links.send(1, Channel::Cursor, Arc::clone(&payload)).expect("to send");
                let back = links.receive(Channel::Cursor, None, &|| false).expect("an answer");
                assert_eq!(back.expect("an answer").1.len(), bytes);
                begun.elapsed()
            })
            .collect();
        times.sort_unstable();
        let at = |share: f64| times[(share * (trips - 1) as f64) as usize].as_secs_f64();
        found.push(serde_json::json!({
            "bytes": bytes, "trips": trips, "median_s": at(0.5), "p99_s": at(0.99),
        }));
    }
    println!("{}", serde_json::Value::from(found));
}

fn answer(links: &Links) {
    // Ends when the other end says goodbye.
    while let Ok(Some((from, message))) = links.receive(Channel::Cursor, None, &|| false) {
        if links.send(from, Channel::Cursor, message).is_err() {
            return;
        }
    }
}
