#!/bin/sh
# macos_sdk.sh FOLDER: stubs of Apple's libraries that bn-chat and bn-server link, laid out as in an SDK. zig has libSystem
# alone. If a crate calls more of them, the linker names it.
set -eu
# PATH NAME-AS-INSTALLED SYMBOLS
stub() {
    mkdir -p "$(dirname "$folder/$1")"
    printf '%s\n' '--- !tapi-tbd' 'tbd-version: 4' 'targets: [ x86_64-macos, arm64-macos ]' "install-name: '$2'" 'exports:' \
        '  - targets: [ x86_64-macos, arm64-macos ]' "    symbols: [ $3 ]" ... > "$folder/$1"
}
framework() {
    path=System/Library/Frameworks/$1.framework
    stub "$path/$1.tbd" "/$path/Versions/$2/$1" "$3"
}
folder=$1
framework CoreFoundation A "_CFArrayCreate, _CFDataCreate, _CFDateCreate, _CFErrorCopyDescription, _CFErrorGetCode, _CFRelease,
    _CFStringCreateWithBytes, _CFStringGetBytes, _CFStringGetCStringPtr, _CFStringGetLength, _kCFAbsoluteTimeIntervalSince1970,
    _kCFAllocatorDefault, _kCFTypeArrayCallBacks"
framework Security A "_SecCertificateCopySubjectSummary, _SecCertificateCreateWithData, _SecCopyErrorMessageString,
    _SecPolicyCreateSSL, _SecTrustCreateWithCertificates, _SecTrustEvaluateWithError, _SecTrustSetAnchorCertificates,
    _SecTrustSetAnchorCertificatesOnly, _SecTrustSetOCSPResponse, _SecTrustSetVerifyDate"
# Linked by crates, but not called.
framework Foundation C ""
stub usr/lib/libobjc.tbd /usr/lib/libobjc.A.dylib ""
