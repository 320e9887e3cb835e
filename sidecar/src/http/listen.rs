//! Binds the port, on one address or on all.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::connections;
use super::{HttpConfig, Parts, ServeError};

/// Sockets that listen and are not served yet.
#[derive(Debug)]
pub struct Listeners {
    sockets: Vec<TcpListener>,
    port: u16,
}

impl Listeners {
    /// Binds what the configuration asks for.
    pub async fn bind(config: &HttpConfig) -> Result<Self, ServeError> {
        let sockets = match config.listen {
            Some(address) => vec![bound((address, config.port).into()).await?],
            None => everywhere(config.port).await?,
        };
        let local = sockets.first().map(TcpListener::local_addr);
        let port = local.and_then(Result::ok).map_or(config.port, |a| a.port());
        Ok(Self { sockets, port })
    }

    /// The port that was bound.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Answers until `cancel`, then lets requests under way finish for a while.
    pub async fn serve(
        self,
        config: HttpConfig,
        parts: Parts,
        cancel: CancellationToken,
    ) -> Result<(), ServeError> {
        connections::serve(self.sockets, self.port, config, parts, cancel).await
    }
}

/// All addresses of the machine. A v6 socket usually takes v4 as well; where it does not, or where there is no v6, a
/// v4 socket does.
async fn everywhere(port: u16) -> Result<Vec<TcpListener>, ServeError> {
    let v4 = |port| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    let address = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    let first = match TcpListener::bind(address).await {
        Ok(socket) => socket,
        Err(error) if is_without_v6(&error) => return Ok(vec![bound(v4(port)).await?]),
        Err(source) => return Err(ServeError::Bind { address, source }),
    };
    let port = first.local_addr().map_or(port, |address| address.port());
    match TcpListener::bind(v4(port)).await {
        Ok(second) => Ok(vec![first, second]),
        // The first one has it.
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(vec![first]),
        Err(source) => Err(ServeError::Bind {
            address: v4(port),
            source,
        }),
    }
}

/// A machine without v6 says either that it has no such address or that it knows no such family.
fn is_without_v6(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::AddrNotAvailable | io::ErrorKind::Unsupported
    ) || error.raw_os_error() == Some(nix::errno::Errno::EAFNOSUPPORT as i32)
}

async fn bound(address: SocketAddr) -> Result<TcpListener, ServeError> {
    let socket = TcpListener::bind(address).await;
    socket.map_err(|source| ServeError::Bind { address, source })
}
