print("tests")
