// SPDX-License-Identifier: MIT OR Apache-2.0
//! The client against a server that fails in many ways.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use rusty_s3::UrlStyle;

use super::*;

/// A request as the server sees it.
#[derive(Clone, Debug)]
struct Seen {
    method: String,
    path: String,
    query: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

/// What the server says: all bytes of an answer; nothing ends the connection.
type Say = dyn Fn(&Seen) -> Vec<u8> + Send + Sync;

fn serve(stream: TcpStream, say: &Say, seen: &Mutex<Vec<Seen>>) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut writer = stream;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let mut words = line.split_whitespace();
        let (Some(method), Some(target)) = (words.next(), words.next()) else { return Ok(()) };
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.trim().split_once(": ") else { break };
            headers.insert(name.to_lowercase(), value.to_owned());
        }
        let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let request = Seen { method: method.into(), path: path.into(), query: query.into(), headers, body };
        let answer = say(&request);
        seen.lock().unwrap().push(request);
        writer.write_all(&answer)?;
        let has = |words: &[u8]| answer.windows(words.len()).any(|window| window == words);
        if answer.is_empty() || has(b"connection: close") || !has(b"HTTP/1.1") {
            return Ok(());
        }
    }
}

/// A client of a server that says so, and what the server has seen.
fn client(say: impl Fn(&Seen) -> Vec<u8> + Send + Sync + 'static) -> (S3, Arc<Mutex<Vec<Seen>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let (say, seen): (Arc<Say>, _) = (Arc::new(say), Arc::new(Mutex::new(Vec::new())));
    let noted = Arc::clone(&seen);
    // It ends with the test's process.
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (say, noted) = (Arc::clone(&say), Arc::clone(&noted));
            thread::spawn(move || serve(stream, &*say, &noted));
        }
    });
    let bucket = Bucket::new(url, UrlStyle::Path, "b", "here").unwrap();
    let s3 = S3::new(bucket, Credentials::new("id", "secret"), "jobs/train");
    (S3 { pause: Duration::from_millis(1), ..s3 }, seen)
}

fn answer(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

fn refusal(status: &str, code: &str) -> Vec<u8> {
    let body =
        format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>why\u{7}</Message></Error>");
    answer(status, "", body.as_bytes())
}

/// A server that is right from its n-th request on.
fn failing(n: usize, fail: impl Fn() -> Vec<u8> + Send + Sync + 'static) -> (S3, Arc<Mutex<Vec<Seen>>>) {
    let made = Mutex::new(0);
    client(move |_| {
        let mut made = made.lock().unwrap();
        *made += 1;
        if *made <= n { fail() } else { answer("200 OK", "etag: \"v\"\r\n", b"bytes") }
    })
}

#[test]
fn requests_are_signed_and_say_what_is_meant() {
    let (s3, seen) = client(|request| match request.method.as_str() {
        "PUT" => answer("200 OK", "ETag: \"one\"\r\n", b""),
        "DELETE" => answer("204 No Content", "", b""),
        _ if request.headers.contains_key("range") => answer("206 Partial Content", "", b"art"),
        _ => answer("200 OK", "ETag: \"one\"\r\n", b"bytes"),
    });
    assert_eq!(s3.called("a/b"), "s3://b/jobs/train/a/b");
    assert_eq!(s3.called(""), "s3://b/jobs/train");
    let version = s3.put("a/b", b"bytes", Condition::Absent).unwrap().unwrap();
    assert_eq!(s3.put("a/b", b"", Condition::Is(&version)).unwrap().unwrap(), version);
    assert_eq!(s3.get("a/b", 5).unwrap().unwrap(), (b"bytes".to_vec(), version));
    assert_eq!(s3.get_part("a/b", 4, 3).unwrap().unwrap(), b"art");
    assert_eq!(s3.get_part("a/b", 4, 0).unwrap().unwrap(), b"");
    s3.delete("a/b").unwrap();
    let seen = seen.lock().unwrap();
    let methods: Vec<&str> = seen.iter().map(|seen| seen.method.as_str()).collect();
    assert_eq!(methods, ["PUT", "PUT", "GET", "GET", "DELETE"]);
    for request in &*seen {
        assert_eq!(request.path, "/b/jobs/train/a/b");
        assert!(
            request.query.contains("X-Amz-Signature=") && request.query.contains("id%2F"),
            "{}",
            request.query
        );
        assert!(!request.query.contains("secret"));
    }
    assert_eq!(seen[0].headers["if-none-match"], "*");
    assert_eq!(seen[0].headers["content-md5"], STANDARD.encode(md5::compute(b"bytes").0));
    assert!(
        seen[0].query.contains("X-Amz-SignedHeaders=content-md5%3Bhost%3Bif-none-match"),
        "{}",
        seen[0].query
    );
    assert_eq!(
        (seen[1].headers["if-match"].as_str(), seen[1].headers["content-length"].as_str()),
        ("\"one\"", "0")
    );
    assert_eq!(seen[3].headers["range"], "bytes=4-6");
}

#[test]
fn what_a_busy_or_broken_server_did_not_do_is_asked_again() {
    let busy: [fn() -> Vec<u8>; 7] = [
        || refusal("503 Slow Down", "SlowDown"),
        || refusal("500 Oops", "InternalError"),
        || refusal("409 Conflict", "ConditionalRequestConflict"),
        || refusal("429 Too Many", ""),
        Vec::new,
        // Of five bytes that were promised two are there.
        || b"HTTP/1.1 200 OK\r\netag: \"v\"\r\ncontent-length: 5\r\nconnection: close\r\n\r\nby".to_vec(),
        || b"nonsense\r\n\r\n".to_vec(),
    ];
    for fail in busy {
        let (s3, seen) = failing(4, fail);
        assert_eq!(s3.get("key", 5).unwrap().unwrap().0, b"bytes");
        assert!(s3.put("key", b"x", Condition::Always).unwrap().is_some());
        assert_eq!(seen.lock().unwrap().len(), 6);
        let (s3, seen) = failing(usize::MAX, fail);
        let error = s3.get("key", 5).unwrap_err();
        assert!(error.to_string().contains("read s3://b/jobs/train/key"), "{error}");
        assert_eq!(seen.lock().unwrap().len(), ATTEMPTS as usize);
    }
}

#[test]
fn what_a_server_refuses_is_said_at_once() {
    for (status, code) in [
        ("403 Forbidden", "AccessDenied"),
        ("404 Not Found", "NoSuchBucket"),
        ("301 Moved", "PermanentRedirect"),
        ("400 Bad", ""),
    ] {
        let (s3, seen) = failing(usize::MAX, move || refusal(status, code));
        let StoreError::Remote { source, .. } = s3.get("key", 5).unwrap_err() else { panic!("{status}") };
        let text = source.to_string();
        assert!(text.contains(code) && text.contains(&status[..3]) && text.ends_with("why"), "{text}");
        assert_eq!(seen.lock().unwrap().len(), 1);
    }
}

#[test]
fn what_another_server_does_not_find_is_not_missing() {
    let page = || answer("404 Not Found", "", b"<html>no such page</html>");
    let (s3, _) = failing(usize::MAX, page);
    assert!(s3.get("key", 5).is_err() && s3.get_part("key", 0, 1).is_err() && s3.list("packs/").is_err());
    assert!(s3.put("key", b"x", Condition::Always).is_err() && s3.delete("key").is_err());
    // Nor is anything written that S3 says it has not.
    let (s3, _) = failing(usize::MAX, || refusal("404 Not Found", "NoSuchKey"));
    assert!(s3.put("key", b"x", Condition::Always).is_err());
}

#[test]
fn objects_that_are_not_there_and_conditions_that_are_not_met_are_no_errors() {
    let (s3, _) = failing(usize::MAX, || refusal("404 Not Found", "NoSuchKey"));
    assert!(s3.get("key", 5).unwrap().is_none() && s3.get_part("key", 0, 1).unwrap().is_none());
    assert!(s3.put("key", b"", Condition::Is(&Version("\"x\"".into()))).unwrap().is_none());
    s3.delete("key").unwrap();
    let (s3, seen) = failing(usize::MAX, || refusal("412 Precondition Failed", "PreconditionFailed"));
    assert!(s3.put("key", b"", Condition::Absent).unwrap().is_none());
    assert_eq!(seen.lock().unwrap().len(), 1);
    let (s3, _) = failing(usize::MAX, || refusal("416 Range", "InvalidRange"));
    assert_eq!(s3.get_part("key", 100, 5).unwrap().unwrap(), b"");
}

#[test]
fn write_whose_answer_was_lost_is_found_to_be_done() {
    for is_ours in [true, false] {
        let objects: Mutex<Option<Vec<u8>>> = Mutex::new(None);
        let made = Mutex::new(0);
        let (s3, _) = client(move |request| {
            let (mut object, mut made) = (objects.lock().unwrap(), made.lock().unwrap());
            *made += 1;
            match (request.method.as_str(), object.as_ref()) {
                ("GET", Some(bytes)) => answer("200 OK", "etag: \"v\"\r\n", bytes),
                ("PUT", None) => {
                    *object = Some(if is_ours { request.body.clone() } else { b"other".to_vec() });
                    Vec::new()
                }
                _ => refusal("412 Precondition Failed", "PreconditionFailed"),
            }
        });
        let written = s3.put("key", b"mine", Condition::Absent).unwrap();
        assert_eq!(written, is_ours.then(|| Version("\"v\"".into())));
    }
}

#[test]
fn clock_that_is_wrong_is_corrected_by_the_servers() {
    // A day ahead of the clock here.
    let there = Timestamp::now() + SignedDuration::from_hours(24);
    let (date, day) = (
        rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&there).unwrap(),
        there.strftime("%Y%m%d").to_string(),
    );
    let (s3, seen) = client(move |request| match request.query.contains(&format!("X-Amz-Date={day}")) {
        true => answer("200 OK", "etag: \"v\"\r\n", b"bytes"),
        false => {
            let body = b"<Error><Code>RequestTimeTooSkewed</Code></Error>";
            answer("403 Forbidden", &format!("date: {date}\r\n"), body)
        }
    });
    assert_eq!(s3.get("key", 5).unwrap().unwrap().0, b"bytes");
    assert_eq!(s3.get("key", 5).unwrap().unwrap().0, b"bytes");
    assert_eq!(seen.lock().unwrap().len(), 3);
}

#[test]
fn answers_that_are_too_long_or_nonsense_are_refused() {
    let (s3, _) = failing(0, Vec::new);
    let StoreError::Remote { source: RemoteError::TooLong(4), .. } = s3.get("key", 4).unwrap_err() else {
        panic!()
    };
    let (s3, _) = client(|_| answer("200 OK", "", b"bytes"));
    assert!(matches!(s3.get("key", 5), Err(StoreError::Remote { source: RemoteError::Answer(_), .. })));
    assert!(matches!(
        s3.get_part("key", 0, 5),
        Err(StoreError::Remote { source: RemoteError::Answer(_), .. })
    ));
    assert!(matches!(s3.list("packs/"), Err(StoreError::Remote { source: RemoteError::Answer(_), .. })));
}

fn list(keys: &[&str], next: Option<&str>) -> Vec<u8> {
    let entry = |key: &&str| {
        format!(
            "<Contents><Key>{key}</Key><Size>7</Size><LastModified>2026-11-30T00:00:00.000Z</LastModified></Contents>"
        )
    };
    let next =
        next.map(|next| format!("<NextContinuationToken>{next}</NextContinuationToken>")).unwrap_or_default();
    let entries: String = keys.iter().map(entry).collect();
    let truncated = !next.is_empty();
    let body = format!(
        "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
         <IsTruncated>{truncated}</IsTruncated>{next}{entries}</ListBucketResult>"
    );
    answer("200 OK", "", body.as_bytes())
}

#[test]
fn lists_are_read_to_their_ends() {
    let (s3, seen) = client(|request| match request.query.contains("continuation-token=more") {
        false => list(&["jobs/train/packs/aa/1", "jobs/train/packs/aa/2"], Some("more")),
        true => list(&["jobs/train/packs/bb/3"], None),
    });
    let keys: Vec<String> = s3.list("packs/").unwrap().into_iter().map(|listed| listed.key).collect();
    assert_eq!(keys, ["packs/aa/1", "packs/aa/2", "packs/bb/3"]);
    assert!(seen.lock().unwrap()[0].query.contains("prefix=jobs%2Ftrain%2Fpacks%2F"));
    // What was not asked for, and a list without an end.
    for said in [list(&["other/packs/aa/1"], None), list(&["jobs/train/packs/aa/1"], Some("same"))] {
        let (s3, _) = client(move |_| said.clone());
        assert!(matches!(s3.list("packs/"), Err(StoreError::Remote { source: RemoteError::Answer(_), .. })));
    }
}

#[test]
fn pauses_grow_up_to_a_limit_and_are_not_alike() {
    let (s3, _) = failing(0, Vec::new);
    let s3 = S3 { pause: PAUSE, ..s3 };
    for attempt in 1..=ATTEMPTS {
        let due = PAUSE.saturating_mul(1 << (attempt - 1)).min(LONGEST_PAUSE);
        let pauses: Vec<Duration> = (0..8).map(|_| s3.pause_before(attempt)).collect();
        assert!(pauses.iter().all(|pause| (due / 2..=due).contains(pause)), "{pauses:?}");
        assert!(pauses.windows(2).any(|pair| pair[0] != pair[1]));
    }
}
