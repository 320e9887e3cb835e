use object_store::client::HttpErrorKind;

use super::*;

fn test_location() -> ObjectLocation {
    ObjectLocation {
        provider: StorageProvider::S3,
        container: "bucket".into(),
        key: "a/v2/Full-1".into(),
    }
}

fn generic_error(source: impl StdError + Send + Sync + 'static) -> AttemptError {
    AttemptError::Remote(object_store::Error::Generic {
        store: "S3",
        source: Box::new(source),
    })
}

fn http_error(source: impl StdError + Send + Sync + 'static) -> AttemptError {
    generic_error(HttpError::new(HttpErrorKind::Unknown, source))
}

fn status_error(status: u16) -> AttemptError {
    http_error(HttpStatusError {
        status,
        excerpt: String::new(),
    })
}

#[test]
fn busy_server_is_transient_and_unimplemented_call_is_not() {
    assert_eq!(status_error(503).class(), ErrorClass::Transient);
    assert_eq!(status_error(500).class(), ErrorClass::Transient);
    assert_eq!(status_error(429).class(), ErrorClass::Transient);
    assert_eq!(status_error(501).class(), ErrorClass::Invalid);
}

#[test]
fn http_status_inside_opaque_errors_determines_the_class() {
    assert_eq!(status_error(400).class(), ErrorClass::Invalid);
    assert_eq!(status_error(401).class(), ErrorClass::Denied);
    assert_eq!(status_error(403).class(), ErrorClass::Denied);
    assert_eq!(status_error(404).class(), ErrorClass::NotFound);
    let excerpt = "<Error><Code>RequestTimeout</Code></Error>".to_owned();
    assert_eq!(
        http_error(HttpStatusError {
            status: 400,
            excerpt
        })
        .class(),
        ErrorClass::Transient
    );
}

#[test]
fn broken_connection_is_transient() {
    assert_eq!(
        http_error(io::Error::from(io::ErrorKind::ConnectionReset)).class(),
        ErrorClass::Transient
    );
}

#[test]
fn untrusted_certificate_is_not_retried() {
    let tls = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
    assert_eq!(
        http_error(io::Error::other(io::Error::other(tls))).class(),
        ErrorClass::Invalid
    );
}

#[test]
fn unclassified_failure_is_not_retried() {
    assert_eq!(
        generic_error(io::Error::other("unparsable answer")).class(),
        ErrorClass::Invalid
    );
}

#[test]
fn full_disk_is_not_retried() {
    let full = AttemptError::file("x", io::Error::from(io::ErrorKind::StorageFull));
    assert_eq!(full.class(), ErrorClass::Invalid);
}

#[test]
fn messages_name_step_provider_container_and_key() {
    let error = StoreError::Request {
        step: StoreOperation::Read,
        place: test_location(),
        attempts: 3,
        elapsed: Duration::from_millis(1500),
        source: Box::new(status_error(503)),
    };
    assert_eq!(
        error.to_string(),
        "read S3 bucket/a/v2/Full-1: failed after 3 attempt(s) in 1.5s"
    );
}

#[test]
fn store_error_survives_conversion_through_std_io() {
    let error = StoreError::AlreadyExists {
        place: test_location(),
    }
    .into_io_error();
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    let back = error.downcast::<StoreError>().unwrap();
    assert_eq!(back.class(), ErrorClass::Exists);
    assert_eq!(back.location(), &test_location());
}
