use super::Gguf;
use super::writer::{Meta, write_file};
use crate::base::Error;
use std::io::Write;

fn tensors() -> Vec<(String, Vec<u64>)> {
    vec![("a".into(), vec![5, 3]), ("b".into(), vec![8, 3])]
}

#[test]
fn a_written_file_reads_back() {
    let folder = tempfile("reads-back");
    let path = folder.join("model.gguf");
    let pairs =
        vec![("general.name".to_owned(), Meta::from("x")), ("list".to_owned(), Meta::I32s(vec![3, -4]))];
    let data = |index: usize, out: &mut dyn Write| {
        let floats = if index == 0 { 15 } else { 24 };
        (0..floats).for_each(|i| out.write_all(&(i as f32).to_le_bytes()).unwrap());
        Ok(0)
    };
    write_file(&path, &pairs, &tensors(), data, |_| Ok(())).unwrap();
    let gguf = Gguf::open(path.to_str().unwrap()).unwrap();
    assert_eq!(gguf.get::<&str>("general.name").unwrap(), "x");
    assert_eq!(gguf.get::<Vec<i32>>("list").unwrap(), [3, -4]);
    let b = gguf.matrix("b", 3, 8).unwrap();
    let values: Vec<f32> =
        b.data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    assert_eq!(values, (0..24).map(|i| i as f32).collect::<Vec<_>>());
    drop((gguf, b)); // Windows cannot remove a mapped file
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_fails_leaves_nothing_behind() {
    let folder = tempfile("leaves-nothing");
    let path = folder.join("model.gguf");
    let error =
        write_file(&path, &[], &tensors(), |_, _| Err(Error::bad_model("no such weights")), |_| Ok(()));
    assert_eq!(error.unwrap_err().message, "no such weights");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    let error = write_file(
        &path,
        &[],
        &[],
        |_, _| Ok(0),
        |written| {
            assert!(!path.exists() && Gguf::open(written.to_str().unwrap()).is_ok());
            Err(Error::bad_model("not what was asked for"))
        },
    );
    assert_eq!(error.unwrap_err().message, "not what was asked for");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    std::fs::remove_dir_all(folder).unwrap();
}

fn tempfile(name: &str) -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("bn-writer-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}
