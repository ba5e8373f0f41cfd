//! One request of HTTP (RFC 9112), and what it is answered. Whatever the bytes are, there is an
//! answer or more is waited for, up to a limit.

use httparse::{EMPTY_HEADER, Request, Status};

/// Longest head of a request in bytes.
pub(super) const HEAD_MAX: usize = 8192;
/// Most fields in it.
const FIELDS_MAX: usize = 64;
/// The format's name (OpenMetrics 1.0, "Protocol negotiation").
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// What there is to say to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reply {
    /// The metrics; only their head when `body` is false.
    Metrics {
        /// Whether the text itself is wanted.
        body: bool,
    },
    /// Something else, by its number.
    Refusal(u16),
}

impl Reply {
    /// By what has come in of a request; `None` when it has not come in whole.
    pub fn to(input: &[u8]) -> Option<Self> {
        let mut fields = [EMPTY_HEADER; FIELDS_MAX];
        let mut request = Request::new(&mut fields);
        match request.parse(input) {
            Ok(Status::Complete(length)) if length <= HEAD_MAX => {}
            Ok(Status::Partial) if input.len() < HEAD_MAX => return None,
            Ok(_) | Err(httparse::Error::TooManyHeaders) => return Some(Self::Refusal(431)),
            Err(_) => return Some(Self::Refusal(400)),
        }
        let path = request.path.unwrap_or_default().split('?').next().unwrap_or_default();
        Some(match (request.method.unwrap_or_default(), path) {
            ("GET", "/metrics") => Self::Metrics { body: true },
            ("HEAD", "/metrics") => Self::Metrics { body: false },
            ("GET" | "HEAD", _) => Self::Refusal(404),
            _ => Self::Refusal(405),
        })
    }

    /// The whole answer; `text` gives the metrics.
    pub fn bytes(self, text: impl FnOnce() -> std::sync::Arc<str>) -> Vec<u8> {
        match self {
            Self::Metrics { body } => {
                let text = text();
                let mut bytes = head("200 OK", OPENMETRICS, text.len(), "");
                if body {
                    bytes.extend_from_slice(text.as_bytes());
                }
                bytes
            }
            Self::Refusal(number) => {
                let (status, more) = match number {
                    404 => ("404 Not Found", ""),
                    405 => ("405 Method Not Allowed", "Allow: GET, HEAD\r\n"),
                    431 => ("431 Request Header Fields Too Large", ""),
                    _ => ("400 Bad Request", ""),
                };
                let text = format!("{status}; the metrics are at /metrics\n");
                let mut bytes = head(status, PLAIN, text.len(), more);
                bytes.extend_from_slice(text.as_bytes());
                bytes
            }
        }
    }
}

fn head(status: &str, kind: &str, length: usize, more: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{more}\
         X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_request_is_answered_when_it_is_whole() {
        let whole = b"GET /metrics?x=1 HTTP/1.1\r\nHost: router\r\n\r\n";
        for n in 0..whole.len() {
            assert_eq!(Reply::to(&whole[..n]), None, "{n}");
        }
        assert_eq!(Reply::to(whole), Some(Reply::Metrics { body: true }));
        assert_eq!(Reply::to(b"HEAD /metrics HTTP/1.0\n\n"), Some(Reply::Metrics { body: false }));
    }

    #[test]
    fn what_is_not_served_is_refused_by_its_number() {
        let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(100));
        let long = format!("GET /metrics HTTP/1.1\r\nA: {}", "b".repeat(HEAD_MAX));
        for (request, number) in [
            ("GET / HTTP/1.1\r\n\r\n", 404),
            ("GET /metrics/../../etc/passwd HTTP/1.1\r\n\r\n", 404),
            ("GET http://router/metrics HTTP/1.1\r\n\r\n", 404),
            ("POST /metrics HTTP/1.1\r\nContent-Length: 1\r\n\r\nx", 405),
            ("\x16\x03\x01\x02", 400),
            ("GET /metrics HTTP/9.9\r\n\r\n", 400),
            (&many, 431),
            (&long, 431),
        ] {
            assert_eq!(Reply::to(request.as_bytes()), Some(Reply::Refusal(number)), "{request:?}");
        }
    }

    #[test]
    fn the_length_said_is_the_length_sent() {
        for reply in
            [Reply::Metrics { body: true }, Reply::Refusal(404), Reply::Refusal(405), Reply::Refusal(431)]
        {
            let text = String::from_utf8(reply.bytes(|| "x 1\n# EOF\n".into())).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{text}");
        }
        let head = Reply::Metrics { body: false }.bytes(|| "12345".into());
        assert!(head.ends_with(b"\r\n\r\n"));
    }

    proptest! {
        #[test]
        fn no_bytes_harm_it_and_none_are_waited_for_forever(
            mut bytes in prop::collection::vec(any::<u8>(), 0..2048)
        ) {
            Reply::to(&bytes);
            bytes.resize(HEAD_MAX, b'a');
            prop_assert!(Reply::to(&bytes).is_some());
        }
    }
}
