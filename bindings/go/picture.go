package bnengine

import (
	"os"
	"unsafe"
)

// Picture is a picture of a request: the bytes of a file, or pixels.
type Picture struct {
	Data          []byte // a PNG, a JPEG, a WebP or a GIF, whose first frame counts
	Width, Height int    // above 0: Data has red, green and blue for each pixel, line by line from the top
}

// ReadPicture reads a file.
func ReadPicture(path string) (Picture, error) {
	data, err := os.ReadFile(path)
	return Picture{Data: data}, err
}

func (a *arena) pictures(list []Picture) (*bn_picture, uintptr) {
	if len(list) == 0 {
		return nil, 0
	}
	data := (*bn_picture)(a.keep(calloc(uintptr(len(list)), sizeof_bn_picture)))
	to := unsafe.Slice(data, len(list))
	for i, picture := range list {
		to[i].data, to[i].data_len = (*byte)(a.keep(copied(picture.Data))), uintptr(len(picture.Data))
		to[i].width, to[i].height = count(picture.Width), count(picture.Height)
	}
	return data, uintptr(len(list))
}

// PicturePositions returns the number of positions that a picture takes in a prompt.
func (e *Engine) PicturePositions(picture Picture) (int, error) {
	var memory arena
	defer memory.free()
	c, _ := memory.pictures([]Picture{picture})
	var positions uint64
	err := e.use(func(ptr bn_engine, failure *bn_error) bn_status {
		return bn_picture_positions(ptr, c, &positions, failure)
	})
	return int(positions), err
}
