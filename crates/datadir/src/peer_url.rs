//! Peer URLs, validated by etcd's rules and kept as written: member IDs are hashes of their text.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

/// URL under which other members reach a member.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerUrl(String);

/// The text is not a valid peer URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PeerUrlError {
    /// The scheme is missing or not supported.
    #[error("invalid peer URL {url:?}: scheme must be http, https, unix or unixs")]
    Scheme {
        /// The URL as given.
        url: String,
    },
    /// A path, query or fragment follows the port.
    #[error("invalid peer URL {url:?}: must not have a path, query or fragment")]
    Path {
        /// The URL as given.
        url: String,
    },
    /// Host or port is missing or contains invalid characters.
    #[error("invalid peer URL {url:?}: address must have the form host:port")]
    HostPort {
        /// The URL as given.
        url: String,
    },
    /// The list contains no URL.
    #[error("no peer URL given")]
    Empty,
}

impl PeerUrl {
    /// The URL text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PeerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for PeerUrl {
    type Err = PeerUrlError;

    /// Trims blanks and lower-cases the scheme, as etcd does; keeps the rest. Rejects hosts that etcd would
    /// rewrite (percent signs, non-ASCII letters), because the member ID would then differ.
    fn from_str(text: &str) -> Result<Self, PeerUrlError> {
        let text = text.trim();
        let url = || text.to_owned();
        let (scheme, rest) = text
            .split_once("://")
            .ok_or_else(|| PeerUrlError::Scheme { url: url() })?;
        let scheme = scheme.to_ascii_lowercase();
        match scheme.as_str() {
            // etcd rejects URLs with a path.
            "http" | "https" if rest.contains(['/', '?', '#']) => {
                return Err(PeerUrlError::Path { url: url() });
            }
            "http" | "https" if !is_host_and_port(rest) => {
                return Err(PeerUrlError::HostPort { url: url() });
            }
            "unix" | "unixs" if rest.is_empty() || !rest.bytes().all(|b| b.is_ascii_graphic()) => {
                return Err(PeerUrlError::HostPort { url: url() });
            }
            "http" | "https" | "unix" | "unixs" => {}
            _ => return Err(PeerUrlError::Scheme { url: url() }),
        }
        Ok(Self(format!("{scheme}://{rest}")))
    }
}

fn is_host_and_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let is_port = port.bytes().all(|byte| byte.is_ascii_digit())
        && port.parse::<u16>().is_ok_and(|number| number > 0);
    let in_brackets = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let is_host = in_brackets.map_or_else(
        || !host.is_empty() && host.bytes().all(is_plain),
        |address| address.parse::<Ipv6Addr>().is_ok(),
    );
    is_host && is_port
}

/// Parses a comma-separated list of URLs, such as the value of `--initial-advertise-peer-urls`.
pub fn parse_peer_urls(text: &str) -> Result<Vec<PeerUrl>, PeerUrlError> {
    let urls: Vec<PeerUrl> = text
        .split(',')
        .filter(|part| !part.trim().is_empty())
        .map(PeerUrl::from_str)
        .collect::<Result<_, _>>()?;
    if urls.is_empty() {
        Err(PeerUrlError::Empty)
    } else {
        Ok(urls)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_text_is_preserved() {
        for text in [
            "http://localhost:2380",
            "https://etcd-main-0.etcd-main-peer.ns.svc:2380",
            "http://[::1]:2380",
            "http://HOST_1:1",
            "unix://localhost:2380",
        ] {
            assert_eq!(text.parse::<PeerUrl>().unwrap().as_str(), text);
        }
        let normalized: PeerUrl = " HTTPS://A:2380 ".parse().unwrap();
        assert_eq!(normalized.as_str(), "https://A:2380");
    }

    #[test]
    fn each_invalid_url_has_a_specific_error() {
        let fault = |text: &str| text.parse::<PeerUrl>().unwrap_err();
        for text in ["", "localhost:2380", "ftp://a:1", "://a:1"] {
            assert!(matches!(fault(text), PeerUrlError::Scheme { .. }), "{text}");
        }
        for text in [
            "http://a:1/",
            "http://a:1/members",
            "http://a:1?x",
            "http://a:1#x",
        ] {
            assert!(matches!(fault(text), PeerUrlError::Path { .. }), "{text}");
        }
        for text in [
            "http://a",
            "http://a:",
            "http://:1",
            "http://a:0",
            "http://a:65536",
            "http://a:+1",
            "http://::1:2380",
            "http://[::1]",
            "http://[::g]:1",
            "http://a b:1",
            "http://é:1",
            "http://u@a:1",
            "http://",
            "unix://",
        ] {
            assert!(
                matches!(fault(text), PeerUrlError::HostPort { .. }),
                "{text}"
            );
        }
    }

    #[test]
    fn url_list_ignores_empty_entries_but_must_have_one_url() {
        let urls = parse_peer_urls("http://a:1,,https://b:2,").unwrap();
        assert_eq!(
            urls.iter().map(PeerUrl::as_str).collect::<Vec<_>>(),
            ["http://a:1", "https://b:2"]
        );
        assert_eq!(parse_peer_urls(" ,"), Err(PeerUrlError::Empty));
        assert!(parse_peer_urls("http://a:1,b").is_err());
    }
}
