//! One question to the running daemon over its control socket; `docs/control-protocol.md` has the
//! words.

use std::{
    io::{self, BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use serde_json::Value;

use super::Failure;

/// The protocol's version.
pub const VERSION: u64 = 1;

/// How long the daemon may think; a reload waits for the kernel.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sends `request` to the daemon whose files are in `runtime_dir`, and gives the answer's data.
///
/// # Errors
/// No daemon runs, it does not answer, or it answers with an error.
pub fn ask(runtime_dir: &Path, request: &Value) -> Result<Value, Failure> {
    let path = runtime_dir.join("control.sock");
    let stream = UnixStream::connect(&path).map_err(|e| no_daemon(&path, &e))?;
    let (line, _) = exchange(stream, request)
        .map_err(|e| Failure::running(format!("{}: no answer: {e}", path.display())))?;
    read(&line).map_err(|refusal| said(refusal, &path))
}

/// Sends `request` for something that goes on behind the answer: the answer's data, and what follows.
///
/// # Errors
/// As for [`ask`].
pub fn open(runtime_dir: &Path, request: &Value) -> Result<(Value, BufReader<UnixStream>), Failure> {
    let path = runtime_dir.join("control.sock");
    let stream = UnixStream::connect(&path).map_err(|e| no_daemon(&path, &e))?;
    let no_answer = |e: io::Error| Failure::running(format!("{}: no answer: {e}", path.display()));
    let (line, stream) = exchange(stream, request).map_err(no_answer)?;
    let data = read(&line).map_err(|refusal| said(refusal, &path))?;
    stream.get_ref().set_read_timeout(None).map_err(no_answer)?;
    Ok((data, stream))
}

fn said(refusal: Refusal, path: &Path) -> Failure {
    match refusal {
        Refusal::Said(failure) => failure,
        Refusal::NoAnswer => {
            let path = path.display();
            Failure::running(format!("{path}: not an answer of sweepd's; is the daemon of this version?"))
        }
    }
}

fn no_daemon(path: &Path, error: &io::Error) -> Failure {
    let path = path.display();
    let text = match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            format!(
                "no sweepd is running at {path}; start one with `sweepd run`, or name its file with --config"
            )
        }
        io::ErrorKind::PermissionDenied => format!("{path}: permission denied; run as root"),
        _ => format!("{path}: {error}"),
    };
    Failure::running(text)
}

/// Sends a line and receives one.
fn exchange(mut stream: UnixStream, request: &Value) -> io::Result<(String, BufReader<UnixStream>)> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(format!("{request}\n").as_bytes())?;
    let (mut line, mut stream) = (String::new(), BufReader::new(stream));
    match stream.read_line(&mut line) {
        Ok(_) if line.ends_with('\n') => Ok((line, stream)),
        Ok(_) => Err(io::Error::other("the daemon closed the connection")),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
            Err(io::Error::other(format!("nothing came within {} s", PATIENCE.as_secs())))
        }
        Err(e) => Err(e),
    }
}

/// Why there is no data.
enum Refusal {
    /// The daemon said why.
    Said(Failure),
    /// What came is no answer.
    NoAnswer,
}

/// Takes an answer apart.
fn read(line: &str) -> Result<Value, Refusal> {
    let mut answer: Value = serde_json::from_str(line).map_err(|_| Refusal::NoAnswer)?;
    if answer["version"] != VERSION {
        return Err(Refusal::NoAnswer);
    }
    match answer["ok"].as_bool() {
        Some(true) => Ok(answer["data"].take()),
        Some(false) => {
            let text = answer["error"].as_str().unwrap_or("the daemon refuses and does not say why");
            if answer["configuration"] == true {
                return Err(Refusal::Said(Failure {
                    code: 2,
                    lines: text.lines().map(Into::into).collect(),
                }));
            }
            let lines = text.lines().map(|line| format!("sweepd: {line}")).collect();
            let code = if answer["usage"] == true { 2 } else { 1 };
            Err(Refusal::Said(Failure { code, lines }))
        }
        None => Err(Refusal::NoAnswer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::os::unix::net::UnixListener;

    /// What the client makes of one answer.
    fn asked(answer: &'static str) -> Result<Value, Failure> {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("control.sock")).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut line = String::new();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            line
        });
        let result = ask(dir.path(), &json!({ "version": 1, "command": "show", "what": "ports" }));
        assert_eq!(server.join().unwrap(), "{\"version\":1,\"command\":\"show\",\"what\":\"ports\"}\n");
        result
    }

    #[test]
    fn the_data_of_a_good_answer_is_given() {
        assert_eq!(asked("{\"version\":1,\"ok\":true,\"data\":[1]}\n").unwrap(), json!([1]));
    }

    #[test]
    fn an_error_of_the_daemons_is_given_line_by_line() {
        let e = asked("{\"version\":1,\"ok\":false,\"error\":\"a\\nb\"}\n").unwrap_err();
        assert_eq!((e.code, e.lines), (1, vec!["sweepd: a".to_owned(), "sweepd: b".to_owned()]));
        let e =
            asked("{\"version\":1,\"ok\":false,\"error\":\"f:1: x\",\"configuration\":true}\n").unwrap_err();
        assert_eq!((e.code, e.lines), (2, vec!["f:1: x".to_owned()]));
    }

    #[test]
    fn what_is_no_answer_is_an_error_and_no_panic() {
        for answer in ["", "{", "\n", "[]\n", "{\"version\":2,\"ok\":true}\n", "{\"version\":1}\n", "null\n"]
        {
            let e = asked(answer).unwrap_err();
            assert_eq!((e.code, e.lines.len()), (1, 1), "{answer:?}");
        }
    }

    #[test]
    fn without_a_daemon_it_says_how_to_start_one() {
        let dir = tempfile::tempdir().unwrap();
        let e = ask(dir.path(), &Value::Null).unwrap_err();
        assert!(e.code == 1 && e.lines[0].contains("sweepd run"), "{e:?}");
    }
}
