use std::io::{Cursor, Write};

use super::member::{CONTENT_LEN, HEADER_LEN, MAX_MEMBER_LEN};
use super::*;

const ALL: [Compression; 5] = [
    Compression::None,
    Compression::Gzip,
    Compression::Zlib,
    Compression::Lzw,
    Compression::Zstd,
];

fn threads(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).unwrap()
}

/// Text that compresses moderately.
fn sample(length: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        b"etcd key value"[(state >> 28) as usize % 14]
    };
    (0..length).map(|_| next()).collect()
}

fn compress(compression: &Compression, content: &[u8], count: usize) -> Vec<u8> {
    let options = EncoderOptions {
        threads: threads(count),
        effort: CompressionEffort::Fast,
    };
    let mut encoder = StreamEncoder::new(compression, Vec::new(), options).unwrap();
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

fn decompress(compression: &Compression, packed: &[u8], count: usize) -> std::io::Result<Vec<u8>> {
    let mut content = Vec::new();
    open_decoder(compression, Cursor::new(packed.to_vec()), threads(count))
        .map_err(std::io::Error::other)?
        .read_to_end(&mut content)?;
    Ok(content)
}

#[test]
fn content_round_trips_at_every_edge_length_and_thread_count() {
    for compression in &ALL {
        for length in [
            0,
            1,
            4095,
            70_000,
            CONTENT_LEN - 1,
            CONTENT_LEN,
            CONTENT_LEN + 1,
            5 * CONTENT_LEN + 17,
        ] {
            let content = sample(length);
            for (writers, readers) in [(1, 1), (3, 2)] {
                let object = compress(compression, &content, writers);
                let back = decompress(compression, &object, readers).unwrap();
                assert!(
                    back == content,
                    "{compression} {length} {writers} {readers}"
                );
            }
        }
    }
}

#[test]
fn thread_count_does_not_change_the_compressed_bytes() {
    let content = sample(3 * CONTENT_LEN + 5);
    let one = compress(&Compression::Gzip, &content, 1);
    assert!(one == compress(&Compression::Gzip, &content, 4));
}

#[test]
fn standard_gzip_reader_reads_our_gzip() {
    let content = sample(3 * CONTENT_LEN + 5);
    let object = compress(&Compression::Gzip, &content, 2);
    let mut back = Vec::new();
    flate2::read::MultiGzDecoder::new(object.as_slice())
        .read_to_end(&mut back)
        .unwrap();
    assert!(back == content);
}

#[test]
fn every_truncation_is_an_error() {
    let content = sample(3000);
    for compression in &ALL[1..] {
        let object = compress(compression, &content, 1);
        for length in 0..object.len() {
            let result = decompress(compression, &object[..length], 2);
            assert!(
                result.is_err(),
                "{compression} cut to {length} of {}",
                object.len()
            );
        }
    }
}

#[test]
fn gzip_stream_cut_inside_a_member_is_an_error() {
    let object = compress(&Compression::Gzip, &sample(3 * CONTENT_LEN), 2);
    for cut in [
        1,
        7,
        8,
        9,
        HEADER_LEN,
        1000,
        object.len() / 2,
        object.len() - 3,
    ] {
        let result = decompress(&Compression::Gzip, &object[..object.len() - cut], 3);
        assert_eq!(
            result.unwrap_err().kind(),
            std::io::ErrorKind::UnexpectedEof,
            "cut {cut}"
        );
    }
}

#[test]
fn gzip_stream_cut_between_members_is_an_error() {
    let object = compress(&Compression::Gzip, &sample(3 * CONTENT_LEN), 1);
    let mut end = 0;
    let mut cuts = Vec::new();
    while end < object.len() {
        cuts.push(end);
        end += member::parse_member_size(object[end..].first_chunk().unwrap()).unwrap();
    }
    assert_eq!((cuts.len(), end), (4, object.len()));
    for cut in cuts {
        let result = decompress(&Compression::Gzip, &object[..cut], 2);
        assert_eq!(
            result.unwrap_err().kind(),
            std::io::ErrorKind::UnexpectedEof,
            "cut to {cut}"
        );
    }
}

#[test]
fn trailing_bytes_are_an_error_for_every_codec() {
    for compression in &ALL[1..] {
        for junk in [&b"\0"[..], b"{}", b"\x1f\x8b", &[0; 600]] {
            let mut object = compress(compression, &sample(9000), 1);
            // The decoder reads LZW codes eight bytes ahead and cannot distinguish bytes within them from padding.
            let junk = if *compression == Compression::Lzw {
                &[0; 600]
            } else {
                junk
            };
            object.extend_from_slice(junk);
            assert!(
                decompress(compression, &object, 2).is_err(),
                "{compression} {}",
                junk.len()
            );
        }
    }
}

#[test]
fn flipped_bit_never_changes_content_of_a_codec_with_checksum() {
    let content = sample(2000);
    for compression in [Compression::Gzip, Compression::Zlib, Compression::Zstd] {
        let object = compress(&compression, &content, 1);
        for bit in 0..object.len() * 8 {
            let mut damaged = object.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            // Flags, times and hints of a header may change; the content may not.
            match decompress(&compression, &damaged, 2) {
                Ok(back) => assert!(back == content, "{compression} bit {bit}"),
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }
    }
}

#[test]
fn gzip_members_of_other_writers_may_follow_ours() {
    let (first, second, third) = (sample(CONTENT_LEN + 9), sample(500), sample(70_000));
    let mut object = compress(&Compression::Gzip, &first, 2);
    let mut other = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    other.write_all(&second).unwrap();
    object.extend_from_slice(&other.finish().unwrap());
    object.extend_from_slice(&compress(&Compression::Gzip, &third, 1));
    let back = decompress(&Compression::Gzip, &object, 3).unwrap();
    assert!(back == [first, second, third].concat());
}

#[test]
fn gzip_member_with_wrong_size_is_refused_without_allocation() {
    let object = compress(&Compression::Gzip, &sample(5000), 1);
    let size = u32::from_le_bytes(object[16..20].try_into().unwrap());
    let end = compress(&Compression::Gzip, &[], 1).len();
    assert_eq!(size as usize, object.len() - end);
    for lie in [
        size - 1,
        size + 1,
        0,
        28,
        u32::try_from(MAX_MEMBER_LEN).unwrap(),
        u32::MAX,
    ] {
        let mut lying = object.clone();
        lying[16..20].copy_from_slice(&lie.to_le_bytes());
        match decompress(&Compression::Gzip, &lying, 2) {
            // An invalid size selects the ordinary reader, which does not use the size.
            Ok(back) => assert!(
                lie < 28 || lie as usize > MAX_MEMBER_LEN,
                "{lie}: {}",
                back.len()
            ),
            Err(error) => assert!(
                (28..=MAX_MEMBER_LEN).contains(&(lie as usize)),
                "{lie}: {error}"
            ),
        }
    }
    let mut bomb = object.clone();
    let trailer = bomb.len() - end;
    bomb[trailer - 4..trailer].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(decompress(&Compression::Gzip, &bomb, 2).is_err());
}

#[test]
fn failed_reader_keeps_failing() {
    let mut object = compress(&Compression::Gzip, &sample(3 * CONTENT_LEN), 1);
    let middle = object.len() / 2;
    object[middle] ^= 0x55;
    let mut reader = open_decoder(&Compression::Gzip, Cursor::new(object), threads(2)).unwrap();
    let mut content = Vec::new();
    assert!(reader.read_to_end(&mut content).is_err());
    assert_eq!(content.len(), CONTENT_LEN);
    assert!(reader.read(&mut [0; 8]).is_err());
    assert!(reader.read(&mut [0; 8]).is_err());
}

#[test]
fn corruption_error_names_codec_and_offset() {
    let mut object = compress(&Compression::Gzip, &sample(2 * CONTENT_LEN), 1);
    let length = object.len() - compress(&Compression::Gzip, &[], 1).len();
    object[length - 100] ^= 0xff;
    let error = decompress(&Compression::Gzip, &object, 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("gzip stream corrupt at or before byte {length}")
    );
    let zlib = compress(&Compression::Zlib, &sample(5000), 1);
    let error = decompress(&Compression::Zlib, &zlib[..zlib.len() - 1], 1).unwrap_err();
    let expected = format!("zlib stream truncated at byte {}", zlib.len() - 1);
    assert_eq!(error.to_string(), expected);
}

#[test]
fn read_error_of_the_source_is_returned_unchanged() {
    struct FailingReader;
    impl Read for FailingReader {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::new(
                std::io::ErrorKind::ConnectionReset,
                "reset",
            ))
        }
    }
    for compression in &ALL {
        let object = compress(compression, &sample(300_000), 1);
        let cut = Cursor::new(object[..object.len() / 2].to_vec()).chain(FailingReader);
        let mut reader = open_decoder(compression, cut, threads(2)).unwrap();
        let error = reader.read_to_end(&mut Vec::new()).unwrap_err();
        assert_eq!(
            error.kind(),
            std::io::ErrorKind::ConnectionReset,
            "{compression}"
        );
    }
}

#[test]
fn reader_can_be_dropped_early() {
    let object = compress(&Compression::Gzip, &sample(12 * CONTENT_LEN), 2);
    for taken in [0, 1, CONTENT_LEN, 3 * CONTENT_LEN] {
        let mut reader =
            open_decoder(&Compression::Gzip, Cursor::new(object.clone()), threads(4)).unwrap();
        reader.read_exact(&mut vec![0; taken]).unwrap();
    }
}

#[test]
fn opening_an_unknown_compression_fails_and_names_its_suffix() {
    let unknown = Compression::from_suffix("bz2");
    let Err(error) = open_decoder(&unknown, Cursor::new(Vec::new()), threads(1)) else {
        panic!()
    };
    assert_eq!(
        error.to_string(),
        "unsupported compression .bz2, expected gz, zlib, Z or zst"
    );
    assert!(StreamEncoder::new(&unknown, Vec::new(), EncoderOptions::default()).is_err());
}
