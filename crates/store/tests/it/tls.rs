//! Certificates: whose are trusted, and what happens with others.

use mainstay_store::{
    Class, Environment, OpenError, Provider, SnapStore, StoreConfig, UploadOptions,
};
use rcgen::{CertificateParams, KeyPair};

use crate::data::{MIB, assert_same, assert_tried_once, brisk, download, noise, put, upload};
use crate::s3::secret_directory;
use crate::servers::{Certificate, Weed};

fn self_signed() -> Certificate {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["127.0.0.1".to_owned()])
        .unwrap()
        .self_signed(&key)
        .unwrap();
    Certificate {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    }
}

fn open(weed: &Weed, name: &str, extra: &[(&str, &str)]) -> Result<SnapStore, OpenError> {
    let keys = [
        ("region", "us-east-1"),
        ("accessKeyID", Weed::KEY_ID),
        ("secretAccessKey", Weed::SECRET),
    ];
    let parent = weed.server.directory.path().join(name);
    let directory = secret_directory(&parent, &[&keys, extra].concat());
    let env = Environment::from_iter([("AWS_APPLICATION_CREDENTIALS", directory)]);
    let config = StoreConfig {
        endpoint: Some(weed.endpoint.parse().unwrap()),
        effort: brisk(),
        ..StoreConfig::new(Provider::S3, Weed::BUCKET)
    };
    SnapStore::open(&config, &env)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_authority_is_trusted_when_told_and_refused_at_once_when_not() {
    let certificate = self_signed();
    let weed = Weed::start_tls(&certificate).await;

    let stranger = open(&weed, "stranger", &[]).unwrap();
    let error = stranger.list("v2").await.unwrap_err();
    assert_eq!(error.class(), Class::Invalid, "{error:?}");
    assert_tried_once(&error);

    let trusting = open(
        &weed,
        "trusting",
        &[("trustedCaCert", &certificate.certificate)],
    )
    .unwrap();
    put(&trusting, "v2/Full-1", &noise(1, 10)).await;

    let careless = open(&weed, "careless", &[("insecureSkipVerify", "true")]).unwrap();
    assert_eq!(careless.list("v2").await.unwrap().len(), 1);

    assert!(open(&weed, "garbled", &[("trustedCaCert", "not a certificate")]).is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_under_a_customer_key_need_that_key() {
    let certificate = self_signed();
    let weed = Weed::start_tls(&certificate).await;
    let key = "0123456789abcdef0123456789abcdef";
    let encrypted = [("sseCustomerKey", key), ("sseCustomerAlgorithm", "AES256")];
    let trusted = [("trustedCaCert", certificate.certificate.as_str())];
    let with_key = open(&weed, "with-key", &[&trusted[..], &encrypted].concat()).unwrap();
    let without = open(&weed, "without", &trusted).unwrap();

    for length in [1000, 12 * MIB + 5] {
        let (name, bytes) = (format!("v2/{length}"), noise(2, length));
        upload(&with_key, &name, &bytes, UploadOptions::create_only())
            .await
            .unwrap();
        assert_same(&download(&with_key, &name).await.unwrap(), &bytes);
        let error = download(&without, &name).await.unwrap_err();
        assert_ne!(error.class(), Class::Transient, "{error:?}");
    }
}
