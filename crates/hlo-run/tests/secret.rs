//! Ranks with a secret over loopback: who does not know it is refused and ends nothing, and what is changed on the way is seen.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hlo_run::{ExecutionError, Ranks, Seat, Secret};

const RIGHT: &str = "the secret of this test";
const WRONG: &str = "the secret of no test at all";
/// Bytes of an opening and of the head of a frame with its signature.
const OPENING_BYTES: usize = 9 + 15 + 1 + 4 + 32;
const HEAD_BYTES: usize = 9 + 32;

fn seat(rank: u32, place: &str, secret: Option<&str>, seconds: u64) -> Seat {
    let secret = secret.map(|text| Secret::new(text.as_bytes(), "a test").expect("long enough"));
    Seat { coordinator: place.into(), rank, n_ranks: 2, connect_timeout: Duration::from_secs(seconds), secret }
}

type Outcome = Result<Vec<Vec<u8>>, String>;

/// A rank that exchanges two rounds of so many bytes.
fn exchange(seat: Seat, say: &mut dyn FnMut(&str)) -> Outcome {
    let run = |ranks: &Ranks| -> Result<Vec<Vec<u8>>, ExecutionError> {
        let mut own = vec![vec![ranks.seat().rank as u8 + 1; 100_000]];
        for round in ["first", "second"] {
            own = ranks.exchange(round, own, |all| {
                let sum: Vec<u8> = all[0].iter().zip(&all[1]).map(|(a, b)| a + b).collect();
                Ok(vec![sum.clone(), sum])
            })?;
        }
        Ok(own)
    };
    let ranks = Ranks::connect(seat, 1, "a plan", say, Box::new(|_| {})).map_err(|e| e.to_string())?;
    let outcome = run(&ranks);
    match outcome {
        Ok(arrays) => ranks.finish().map(|()| arrays),
        Err(error) => {
            ranks.fail(&error);
            Err(error)
        }
    }
    .map_err(|e| e.to_string())
}

/// Rank 0 in a thread, what it says, and where it listens.
struct Coordinator {
    thread: JoinHandle<Outcome>,
    said: Receiver<String>,
    place: String,
}

impl Coordinator {
    fn start(secret: Option<&str>, seconds: u64) -> Coordinator {
        let (sender, said) = channel();
        let seat = seat(0, "127.0.0.1:0", secret, seconds);
        let thread = thread::spawn(move || exchange(seat, &mut |line| drop(sender.send(line.to_string()))));
        let line = said.recv().expect("where it waits");
        let place = line.strip_prefix("rank 0 waits at ").and_then(|rest| rest.split(' ').next()).expect("a place");
        Coordinator { thread, said, place: place.into() }
    }

    fn next_line(&self) -> String {
        self.said.recv_timeout(Duration::from_secs(30)).expect("a line")
    }

    fn end(self) -> Outcome {
        finished(self.thread)
    }
}

fn joiner(place: &str, secret: Option<&str>) -> Outcome {
    let seat = seat(1, place, secret, 20);
    finished(thread::spawn(move || exchange(seat, &mut |_| {})))
}

/// Waits for a rank; fails the test after a minute.
fn finished(rank: JoinHandle<Outcome>) -> Outcome {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !rank.is_finished() {
        assert!(Instant::now() < deadline, "a rank hangs");
        thread::sleep(Duration::from_millis(10));
    }
    rank.join().expect("no panic")
}

fn is_done(outcome: &Outcome) -> bool {
    *outcome == Ok(vec![vec![6; 100_000]])
}

/// Stands between rank 1 and rank 0, and does something to what goes to rank 0 (`up`) and what comes back.
struct Between {
    place: String,
    upward: Arc<Mutex<Vec<u8>>>,
}

/// Makes of bytes and their place in the stream what is passed on.
type Change = Box<dyn FnMut(u64, &mut Vec<u8>) + Send>;

impl Between {
    fn start(target: &str, up: Change, down: Change) -> Between {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let place = listener.local_addr().expect("an address").to_string();
        let upward = Arc::new(Mutex::new(Vec::new()));
        let (target, record) = (target.to_string(), Arc::clone(&upward));
        thread::spawn(move || {
            let (near, _) = listener.accept().expect("rank 1");
            let far = TcpStream::connect(target).expect("rank 0");
            let back = (far.try_clone().expect("far"), near.try_clone().expect("near"));
            let upward = thread::spawn(move || pass_on(near, far, up, Some(&record)));
            pass_on(back.0, back.1, down, None);
            drop(upward.join());
        });
        Between { place, upward }
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, mut change: Change, record: Option<&Mutex<Vec<u8>>>) {
    let (mut buffer, mut at) = ([0; 4096], 0);
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        let mut bytes = buffer[..n].to_vec();
        if let Some(record) = record {
            record.lock().expect("no panic").extend_from_slice(&bytes);
        }
        change(at, &mut bytes);
        at += n as u64;
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}

fn nothing() -> Change {
    Box::new(|_, _| {})
}

/// Flips a bit of one byte.
fn flip(place: u64) -> Change {
    Box::new(move |at, bytes| {
        if let Some(byte) = place.checked_sub(at).and_then(|i| bytes.get_mut(i as usize)) {
            *byte ^= 4;
        }
    })
}

#[test]
fn ranks_with_one_secret_or_none_run() {
    for secret in [None, Some(RIGHT)] {
        let rank0 = Coordinator::start(secret, 20);
        assert!(is_done(&joiner(&rank0.place, secret)));
        assert!(is_done(&rank0.end()));
    }
}

#[test]
fn who_has_another_secret_is_refused_by_name_and_the_run_goes_on() {
    let rank0 = Coordinator::start(Some(RIGHT), 30);
    for (secret, why) in [
        (Some(WRONG), "it has another secret, or repeats what another said"),
        (None, "it has no secret: expected that of rank 0, by --secret-file or HLO_OPT_SECRET"),
    ] {
        let error = joiner(&rank0.place, secret).expect_err("no secret, no run");
        assert_eq!(error, format!("rank 0 at {} refuses this rank: {why}", rank0.place));
        let line = rank0.next_line();
        assert!(line.starts_with("refused 127.0.0.1:") && line.ends_with(why), "{line}");
    }
    assert!(is_done(&joiner(&rank0.place, Some(RIGHT))));
    assert!(is_done(&rank0.end()));
}

#[test]
fn a_secret_that_rank_0_has_not_is_said_at_both_ends() {
    let rank0 = Coordinator::start(None, 30);
    let error = joiner(&rank0.place, Some(RIGHT)).expect_err("rank 0 has no secret");
    assert!(error.contains("it has a secret and rank 0 has none"), "{error}");
    assert!(rank0.next_line().contains("it has a secret and rank 0 has none"));
    assert!(is_done(&joiner(&rank0.place, None)));
    assert!(is_done(&rank0.end()));
}

#[test]
fn nobody_without_the_secret_ends_the_run_before_it_begins() {
    let rank0 = Coordinator::start(Some(RIGHT), 30);
    // More connections that say nothing than are kept.
    let silent: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(&rank0.place).expect("a connection")).collect();
    let mut noisy = TcpStream::connect(&rank0.place).expect("a connection");
    noisy.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").expect("it is sent");
    // A word of the protocol that would end a run: an unsigned failure.
    let mut rude = TcpStream::connect(&rank0.place).expect("a connection");
    rude.write_all(&[&[0xA5, 3, 0, 0, 0, 0, 0, 0, 0][..], b"end"].concat()).expect("it is sent");
    // A frame that says to be longer than any memory.
    let mut long = TcpStream::connect(&rank0.place).expect("a connection");
    long.write_all(&[0xA7, 255, 255, 255, 255, 255, 255, 255, 255]).expect("it is sent");
    assert!(is_done(&joiner(&rank0.place, Some(RIGHT))));
    let lines: Vec<String> = rank0.said.iter().collect();
    assert!(is_done(&rank0.end()));
    let n_named = lines.iter().filter(|line| line.starts_with("refused 127.0.0.1:")).count();
    assert!((1..=20).contains(&n_named), "{lines:?}");
    drop(silent);
}

/// A connection that sends a byte now and then does not keep its place for longer than its time.
#[test]
fn slow_words_are_cut_off() {
    let rank0 = Coordinator::start(Some(RIGHT), 30);
    let mut slow = TcpStream::connect(&rank0.place).expect("a connection");
    let started = Instant::now();
    let mut is_open = true;
    let mut words = [0xA7, 60, 0, 0, 0, 0, 0, 0, 0].into_iter().chain(std::iter::repeat(0));
    while is_open && started.elapsed() < Duration::from_secs(25) {
        is_open = slow.write_all(&[words.next().unwrap_or(0)]).is_ok();
        thread::sleep(Duration::from_millis(500));
        if rank0.said.try_recv().is_ok_and(|line| line.contains("refused")) {
            break;
        }
    }
    let elapsed = started.elapsed();
    assert!((5..20).contains(&elapsed.as_secs()), "{elapsed:?}");
    assert!(is_done(&joiner(&rank0.place, Some(RIGHT))));
    assert!(is_done(&rank0.end()));
}

#[test]
fn a_recorded_handshake_proves_nothing() {
    let rank0 = Coordinator::start(Some(RIGHT), 20);
    let between = Between::start(&rank0.place, nothing(), nothing());
    assert!(is_done(&joiner(&between.place, Some(RIGHT))), "who only listens changes nothing");
    assert!(is_done(&rank0.end()));
    let recorded = between.upward.lock().expect("no panic").clone();
    assert!(recorded.len() > 200_000);

    let rank0 = Coordinator::start(Some(RIGHT), 30);
    let mut replay = TcpStream::connect(&rank0.place).expect("a connection");
    let _ = replay.write_all(&recorded);
    let line = rank0.next_line();
    assert!(line.ends_with("it has another secret, or repeats what another said"), "{line}");
    assert!(is_done(&joiner(&rank0.place, Some(RIGHT))));
    assert!(is_done(&rank0.end()));
}

#[test]
fn a_rank_0_without_the_secret_is_no_rank_0() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let place = listener.local_addr().expect("an address").to_string();
    let impostor = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("rank 1");
        let mut opening = [0; OPENING_BYTES];
        stream.read_exact(&mut opening).expect("an opening");
        // Its own opening and its own hello sent back to it, with what a welcome would be.
        stream.write_all(&opening).expect("sent");
        let mut hello = [0; HEAD_BYTES];
        stream.read_exact(&mut hello).expect("a hello");
        hello[..9].copy_from_slice(&[0xA2, 0, 0, 0, 0, 0, 0, 0, 0]);
        let _ = stream.write_all(&hello);
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let error = joiner(&place, Some(RIGHT)).expect_err("nobody proved anything");
    assert_eq!(error, format!("rank 0 at {place} does not prove that it knows the secret"));
    impostor.join().expect("no panic");
}

/// Every kind of byte: of the nonces, of the hello, of the head, signature and payload of a frame, in both directions.
#[test]
fn a_flipped_bit_is_seen_wherever_it_is() {
    let up = [OPENING_BYTES as u64 - 1, (OPENING_BYTES + 12) as u64, 400, 50_000, 100_000, 200_000];
    let down = [OPENING_BYTES as u64 - 1, (OPENING_BYTES + 12) as u64, (OPENING_BYTES + HEAD_BYTES + 3) as u64, 60_000];
    let cases = up.into_iter().map(|at| (at, true)).chain(down.into_iter().map(|at| (at, false)));
    let threads: Vec<_> = cases
        .map(|(at, is_up)| {
            thread::spawn(move || {
                let rank0 = Coordinator::start(Some(RIGHT), 3);
                let changes = if is_up { (flip(at), nothing()) } else { (nothing(), flip(at)) };
                let between = Between::start(&rank0.place, changes.0, changes.1);
                let error = joiner(&between.place, Some(RIGHT)).expect_err("changed on the way");
                let other = rank0.end().expect_err("changed on the way");
                let all = format!("{error}; {other}");
                let is_named =
                    ["is not signed with", "another secret", "does not prove"].iter().any(|w| all.contains(w));
                assert!(is_named, "byte {at}, up {is_up}: {all}");
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("as expected"));
}

/// Without the test of heads, a length that grew would swallow heartbeats for ever.
#[test]
fn a_frame_that_grows_is_seen_at_once() {
    let rank0 = Coordinator::start(Some(RIGHT), 20);
    let mut seen = Vec::new();
    let change: Change = Box::new(move |_, bytes| {
        let before = seen.len();
        seen.extend_from_slice(bytes);
        // The hello has a payload of unknown length: the first frame of arrays is found by its kind and length.
        let found = seen.windows(9).position(|w| w[0] == 0xA4 && w[1..4] == [0xBD, 0x86, 0x01] && w[4..] == [0; 5]);
        if let Some(place) = found.and_then(|place| (place + 7).checked_sub(before)).filter(|i| *i < bytes.len()) {
            bytes[place] = 1;
        }
    });
    let between = Between::start(&rank0.place, change, nothing());
    let started = Instant::now();
    let _ = joiner(&between.place, Some(RIGHT));
    let error = rank0.end().expect_err("a frame grew");
    assert!(error.contains("a frame is not signed with the run's secret, or was changed"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(8));
}

#[test]
fn frames_that_are_left_out_or_sent_twice_are_seen() {
    for is_twice in [false, true] {
        let rank0 = Coordinator::start(Some(RIGHT), 20);
        // Heartbeats have no payload: 41 bytes at a time, two seconds apart. One more or less would harm nobody, and is seen.
        let mut n_seen = 0;
        let change: Change = Box::new(move |_, bytes| {
            if bytes.len() == HEAD_BYTES && bytes[0] == 0xA3 {
                n_seen += 1;
                if n_seen == 1 {
                    *bytes = if is_twice { bytes.repeat(2) } else { Vec::new() };
                }
            }
        });
        let between = Between::start(&rank0.place, change, nothing());
        let seat = seat(1, &between.place, Some(RIGHT), 20);
        let ranks = Ranks::connect(seat, 1, "a plan", &mut |_| {}, Box::new(|_| {})).expect("they meet");
        // Rank 1 says nothing but its heartbeats.
        let error = rank0.end().expect_err("a heartbeat too many or too few");
        assert!(error.contains("left out or sent again"), "{error}");
        drop(ranks);
    }
}
