//! Binds the port, on one address or on all addresses.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::connections;
use super::{HttpBackend, HttpConfig, HttpServeError};

/// Bound sockets that are not served yet.
#[derive(Debug)]
pub struct Listeners {
    sockets: Vec<TcpListener>,
    port: u16,
}

impl Listeners {
    /// Binds the configured address and port.
    pub async fn bind(config: &HttpConfig) -> Result<Self, HttpServeError> {
        let sockets = match config.listen_address {
            Some(address) => vec![bind_address((address, config.port).into()).await?],
            None => bind_all(config.port).await?,
        };
        let local = sockets.first().map(TcpListener::local_addr);
        let port = local.and_then(Result::ok).map_or(config.port, |a| a.port());
        Ok(Self { sockets, port })
    }

    /// The bound port: differs from the configured one if that is 0.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Serves until `cancel`, then gives requests in flight `drain_timeout` to finish.
    pub async fn serve(
        self,
        config: HttpConfig,
        parts: HttpBackend,
        cancel: CancellationToken,
    ) -> Result<(), HttpServeError> {
        connections::serve(self.sockets, self.port, config, parts, cancel).await
    }
}

/// Binds all addresses. An IPv6 socket usually accepts IPv4 as well; where it does not (`bindv6only`), or where IPv6 is
/// unavailable, an IPv4 socket is bound.
async fn bind_all(port: u16) -> Result<Vec<TcpListener>, HttpServeError> {
    let v4 = |port| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    let address = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    let first = match TcpListener::bind(address).await {
        Ok(socket) => socket,
        Err(error) if is_ipv6_unavailable(&error) => {
            return Ok(vec![bind_address(v4(port)).await?]);
        }
        Err(source) => return Err(HttpServeError::Bind { address, source }),
    };
    let port = first.local_addr().map_or(port, |address| address.port());
    match TcpListener::bind(v4(port)).await {
        Ok(second) => Ok(vec![first, second]),
        // The IPv6 socket accepts IPv4 as well.
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(vec![first]),
        Err(source) => Err(HttpServeError::Bind {
            address: v4(port),
            source,
        }),
    }
}

/// Without IPv6 the kernel reports an unavailable address or an unsupported address family.
fn is_ipv6_unavailable(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::AddrNotAvailable | io::ErrorKind::Unsupported
    ) || error.raw_os_error() == Some(nix::errno::Errno::EAFNOSUPPORT as i32)
}

async fn bind_address(address: SocketAddr) -> Result<TcpListener, HttpServeError> {
    let socket = TcpListener::bind(address).await;
    socket.map_err(|source| HttpServeError::Bind { address, source })
}
