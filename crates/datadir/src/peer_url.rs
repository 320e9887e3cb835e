//! Peer URLs, accepted by the rules of etcd and kept as they were written: identities are hashes of their text.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

/// The URL under which a member is reached by the others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerUrl(String);

/// Why a text is no peer URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PeerUrlError {
    /// The scheme is missing or another one.
    #[error("peer url {url:?}: the scheme must be http, https, unix or unixs")]
    Scheme {
        /// The text.
        url: String,
    },
    /// There is something behind the port.
    #[error("peer url {url:?}: no path, query or fragment may follow the port")]
    Path {
        /// The text.
        url: String,
    },
    /// There is no host or no port, or one of them has characters it cannot have.
    #[error("peer url {url:?}: the address must have the form host:port")]
    HostPort {
        /// The text.
        url: String,
    },
    /// A list has no URL in it.
    #[error("no peer url given")]
    Empty,
}

impl PeerUrl {
    /// The text.
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

    /// Blanks around the URL are dropped and the scheme is lower-cased, as etcd does; the rest stays. Hosts
    /// that etcd would rewrite (percent signs, letters outside ASCII) are refused.
    fn from_str(text: &str) -> Result<Self, PeerUrlError> {
        let text = text.trim();
        let url = || text.to_owned();
        let (scheme, rest) = text
            .split_once("://")
            .ok_or_else(|| PeerUrlError::Scheme { url: url() })?;
        let scheme = scheme.to_ascii_lowercase();
        match scheme.as_str() {
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

/// Reads a list of URLs separated by commas, such as the value of `--initial-advertise-peer-urls`.
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
    fn a_url_is_kept_as_it_was_written() {
        for text in [
            "http://localhost:2380",
            "https://etcd-main-0.etcd-main-peer.ns.svc:2380",
            "http://[::1]:2380",
            "http://HOST_1:1",
            "unix://localhost:2380",
        ] {
            assert_eq!(text.parse::<PeerUrl>().unwrap().as_str(), text);
        }
        let tidied: PeerUrl = " HTTPS://A:2380 ".parse().unwrap();
        assert_eq!(tidied.as_str(), "https://A:2380");
    }

    #[test]
    fn each_fault_has_its_own_name() {
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
            assert!(matches!(fault(text), PeerUrlError::HostPort { .. }), "{text}");
        }
    }

    #[test]
    fn a_list_may_have_empty_places_but_not_only_those() {
        let urls = parse_peer_urls("http://a:1,,https://b:2,").unwrap();
        assert_eq!(
            urls.iter().map(PeerUrl::as_str).collect::<Vec<_>>(),
            ["http://a:1", "https://b:2"]
        );
        assert_eq!(parse_peer_urls(" ,"), Err(PeerUrlError::Empty));
        assert!(parse_peer_urls("http://a:1,b").is_err());
    }
}
