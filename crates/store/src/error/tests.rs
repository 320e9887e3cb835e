use object_store::client::HttpErrorKind;

use super::*;

fn place() -> Place {
    Place {
        provider: Provider::S3,
        container: "bucket".into(),
        key: "a/v2/Full-1".into(),
    }
}

fn generic(source: impl StdError + Send + Sync + 'static) -> Fault {
    Fault::Remote(object_store::Error::Generic {
        store: "S3",
        source: Box::new(source),
    })
}

fn http(source: impl StdError + Send + Sync + 'static) -> Fault {
    generic(HttpError::new(HttpErrorKind::Unknown, source))
}

fn status(status: u16) -> Fault {
    http(RemoteStatus {
        status,
        excerpt: String::new(),
    })
}

#[test]
fn a_busy_server_is_transient_and_one_that_lacks_the_call_is_not() {
    assert_eq!(status(503).class(), Class::Transient);
    assert_eq!(status(500).class(), Class::Transient);
    assert_eq!(status(429).class(), Class::Transient);
    assert_eq!(status(501).class(), Class::Invalid);
}

#[test]
fn refusals_keep_their_meaning_inside_opaque_errors() {
    assert_eq!(status(400).class(), Class::Invalid);
    assert_eq!(status(401).class(), Class::Denied);
    assert_eq!(status(403).class(), Class::Denied);
    assert_eq!(status(404).class(), Class::NotFound);
    let excerpt = "<Error><Code>RequestTimeout</Code></Error>".to_owned();
    assert_eq!(
        http(RemoteStatus {
            status: 400,
            excerpt
        })
        .class(),
        Class::Transient
    );
}

#[test]
fn a_broken_connection_is_transient() {
    assert_eq!(
        http(io::Error::from(io::ErrorKind::ConnectionReset)).class(),
        Class::Transient
    );
}

#[test]
fn an_untrusted_certificate_is_not_worth_a_retry() {
    let tls = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
    assert_eq!(
        http(io::Error::other(io::Error::other(tls))).class(),
        Class::Invalid
    );
}

#[test]
fn an_unexplained_failure_is_not_retried() {
    assert_eq!(
        generic(io::Error::other("unparsable answer")).class(),
        Class::Invalid
    );
}

#[test]
fn a_full_disk_is_not_retried() {
    let full = Fault::file("x", io::Error::from(io::ErrorKind::StorageFull));
    assert_eq!(full.class(), Class::Invalid);
}

#[test]
fn messages_name_step_provider_container_and_key() {
    let error = StoreError::Request {
        step: Step::Read,
        place: place(),
        attempts: 3,
        elapsed: Duration::from_millis(1500),
        source: Box::new(status(503)),
    };
    assert_eq!(
        error.to_string(),
        "read S3 bucket/a/v2/Full-1: gave up after 3 attempts in 1.5s"
    );
}

#[test]
fn an_error_survives_the_trip_through_std_io() {
    let error = StoreError::Exists { place: place() }.into_io();
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    let back = error.downcast::<StoreError>().unwrap();
    assert_eq!(back.class(), Class::Exists);
    assert_eq!(back.place(), &place());
}
