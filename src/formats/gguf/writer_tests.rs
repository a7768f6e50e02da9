use super::Gguf;
use super::writer::{Entry, Meta, write_file};
use crate::base::Error;

fn entries() -> Vec<Entry> {
    let entry = |name: &str, cols| Entry {
        name: name.into(),
        dims: vec![cols, 3],
        type_id: 0,
        bytes: 12 * cols as usize,
    };
    vec![entry("a", 5), entry("b", 8)]
}

#[test]
fn a_written_file_reads_back() {
    let folder = tempfile("reads-back");
    let path = folder.join("model.gguf");
    let pairs =
        vec![("general.name".to_owned(), Meta::from("x")), ("list".to_owned(), Meta::I32s(vec![3, -4]))];
    write_file(&path, &pairs, &entries(), |index, out| {
        let floats = if index == 0 { 15 } else { 24 };
        (0..floats).for_each(|i| out.write_all(&(i as f32).to_le_bytes()).unwrap());
        Ok(())
    })
    .unwrap();
    let gguf = Gguf::open(path.to_str().unwrap()).unwrap();
    assert_eq!(gguf.get::<&str>("general.name").unwrap(), "x");
    assert_eq!(gguf.get::<Vec<i32>>("list").unwrap(), [3, -4]);
    let b = gguf.matrix("b", 3, 8).unwrap();
    let values: Vec<f32> =
        b.data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    assert_eq!(values, (0..24).map(|i| i as f32).collect::<Vec<_>>());
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_fails_leaves_nothing_behind() {
    let folder = tempfile("leaves-nothing");
    let path = folder.join("model.gguf");
    let error =
        write_file(&path, &[], &entries(), |_, _| Err(Error::bad_model("no such weights"))).unwrap_err();
    assert_eq!(error.message, "no such weights");
    let error =
        write_file(&path, &[], &entries(), |_, out| out.write_all(&[0; 7]).map_err(|_| unreachable!()));
    assert!(error.unwrap_err().message.contains("took 7 bytes where 60"));
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    std::fs::remove_dir_all(folder).unwrap();
}

fn tempfile(name: &str) -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("bn-writer-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}
